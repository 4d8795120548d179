"""The tools over the Model Context Protocol, on stdin and stdout."""

from __future__ import annotations

from pathlib import Path

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

import lab
from lab.serve.tools import INSTRUCTIONS, Tools

READ_ONLY = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}


def server(root: Path) -> MCPServer:
    """A server with the read-only tools; nothing else, and no transport but stdio is started."""
    made = MCPServer("lab", version=lab.__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    tools = Tools(root)
    for tool in (tools.list_runs, tools.get_findings, tools.query, tools.diff):
        made.tool(annotations=ToolAnnotations.model_validate(READ_ONLY))(tool)
    return made


def serve(root: Path) -> None:
    server(root).run("stdio")
