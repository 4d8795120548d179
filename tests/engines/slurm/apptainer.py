"""A stand-in for apptainer: `exec` as its manual says of the options that lab gives it, in a user namespace.

The image is this system's programs; nothing else of the host is seen but the mounts.
"""

from __future__ import annotations

import csv
import os
import sys

SYSTEM = [
    f"/{top}" for top in ("usr", "bin", "lib", "lib64", "etc", "proc", "dev") if os.path.exists(f"/{top}")
]


def main() -> None:
    options, words = parse(sys.argv[1:])
    assert options["flags"] >= {"--cleanenv", "--contain"}, options
    workdir, home = options["--workdir"], os.path.expanduser("~")
    mounts = options["--mount"]
    for name, target in (("tmp", "/tmp"), ("home", home)):
        os.makedirs(f"{workdir}/{name}")
        mounts.append((f"{workdir}/{name}", target, False))
    prefix = "APPTAINERENV_"
    env = {name.removeprefix(prefix): text for name, text in os.environ.items() if name.startswith(prefix)}
    assert "HOME" not in env, "not permitted"
    env |= {"HOME": home, "PATH": "/usr/bin:/bin", "IMAGE": words.pop(0)}
    inside = ["env", "-i", *(f"{name}={text}" for name, text in env.items())]
    inside += ["sh", "-c", 'cd "$0" && exec "$@"', options["--pwd"], *words]
    script, sources = rooted(f"{workdir}/root", mounts)
    command = ["unshare", "-rm", "sh", "-ec", script, "sh", *inside]
    os.execvpe(command[0], command, {**os.environ, **sources})


def parse(words: list[str]) -> tuple[dict, list[str]]:
    """The options of `apptainer exec`, and what follows them."""
    assert words.pop(0) == "exec"
    options: dict = {"flags": set(), "--mount": []}
    while words[0].startswith("--"):
        word = words.pop(0)
        if word == "--mount":
            fields = next(csv.reader([words.pop(0)]))
            pairs = dict(field.split("=", 1) for field in fields if "=" in field)
            options[word].append((pairs["source"], pairs["destination"], "ro" in fields))
        elif word in ("--pwd", "--workdir"):
            options[word] = words.pop(0)
        else:
            options["flags"].add(word)
    return options, words


def rooted(root: str, mounts: list[tuple[str, str, bool]]) -> tuple[str, dict[str, str]]:
    """A shell script that makes the new root and enters it, and the variables it reads paths from."""
    lines = ['mkdir "$ROOT"', 'mount -t tmpfs none "$ROOT"']
    for top in SYSTEM:
        lines += [f'mkdir "$ROOT{top}"', f'mount --rbind {top} "$ROOT{top}"']
    variables = {"ROOT": root}
    for n, (source, target, read_only) in enumerate(mounts):
        variables |= {f"SRC{n}": source, f"DST{n}": root + target}
        make = "mkdir -p" if os.path.isdir(source) else "touch"
        lines += [
            f'mkdir -p "$(dirname "$DST{n}")"',
            f'{make} "$DST{n}"',
            f'mount --bind "$SRC{n}" "$DST{n}"',
        ]
        lines += [f'mount -o remount,bind,ro "$DST{n}"'] if read_only else []
    return "; ".join([*lines, 'exec chroot "$ROOT" "$@"']), variables


if __name__ == "__main__":
    main()
