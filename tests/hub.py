"""A stand-in for the Hub: serves small model repositories by its protocol, as far as a download needs it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_planted_secret_1234"


@dataclass
class StandIn:
    """repos: model -> file name -> content. A gated one wants TOKEN. slow_s: pause before each file."""

    repos: dict[str, dict[str, bytes]]
    gated: frozenset[str] = frozenset()
    slow_s: float = 0.0
    status: int = 0  # answer everything with this
    pretend_bytes: int = 0  # each file's size, as the listing says it
    asked: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    url: str = ""


def tiny_repo(**more: bytes) -> dict[str, bytes]:
    """Files that look like a model's: nothing loads them."""
    return {"config.json": b'{"model_type": "mistral"}', "model.safetensors": b"w" * 5000, **more}


@contextlib.contextmanager
def serving(hub: StandIn, host: str = "127.0.0.1") -> Iterator[StandIn]:
    server = ThreadingHTTPServer((host, 0), _handler(hub))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    hub.url = f"http://{host}:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _handler(hub: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            bearer = self.headers.get("Authorization", "")
            hub.tokens.append(bearer)
            if hub.status:
                return self._fail(hub.status, "")
            about = re.fullmatch(r"/api/models/(.+?)(?:/(revision|tree)/([^/]+))?", path)
            file = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
            match = about or file
            repo = match and match[1]
            if repo not in hub.repos:
                return self._fail(404 if bearer else 401, "RepoNotFound")
            if repo in hub.gated and bearer != f"Bearer {TOKEN}" and (file or about[2] == "tree"):
                return self._fail(403 if bearer else 401, "GatedRepo")
            if (about[3] if about else file[2]) not in (None, "main", COMMIT):
                return self._fail(404, "RevisionNotFound")
            files = hub.repos[repo]
            if file:
                return self._file(files.get(file[3]))
            listing = [self._entry(name, content) for name, content in files.items()]
            self._send(200, json.dumps(listing if about[2] == "tree" else self._info(repo, files)).encode())

        do_HEAD = do_GET

        def _info(self, repo: str, files: dict[str, bytes]) -> dict:
            siblings = [{"rfilename": n, "size": hub.pretend_bytes or len(c)} for n, c in files.items()]
            gated = "auto" if repo in hub.gated else False
            return {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "gated": gated}

        def _entry(self, name: str, content: bytes) -> dict:
            return {
                "type": "file",
                "path": name,
                "size": len(content),
                "oid": hashlib.sha1(content).hexdigest(),
            }

        def _file(self, content: bytes | None) -> None:
            if content is None:
                return self._fail(404, "EntryNotFound")
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            begin = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
            first = int(begin[1]) if begin else 0
            headers = {"ETag": etag, "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            if begin:
                headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            if self.command == "GET":
                time.sleep(hub.slow_s)
            self._send(206 if begin else 200, content[first:], headers)

        def _fail(self, status: int, code: str) -> None:
            headers = {"X-Error-Code": code, "X-Error-Message": code} if code else {}
            self._send(status, b"{}", headers)

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(body)

    return Handler


def mistral_repo(folder: Path) -> dict[str, bytes]:
    """A Mistral of two small layers with a tokenizer, as transformers itself writes it, in two shards."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", "dizzy", "a", "b"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = MistralConfig(**shape, num_attention_heads=4, num_key_value_heads=2, vocab_size=64)
    MistralForCausalLM(config).save_pretrained(folder, max_shard_size="200kB")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "model.safetensors.index.json" in files
    return {**files, "pytorch_model.bin": b"the same numbers again", "model.gguf": b"and again"}
