"""What tangentlens brings along and trusts: licences of what it needs, no network and no foreign code unless asked."""

import contextlib
import json
import os
import pickle
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
import transformers.dynamic_module_utils
from packaging.requirements import Requirement

from tangentlens import InputError
from tangentlens.models.load import check_model, load_model
from tangentlens.models.loading import Loading
from tiny import save_tiny

# What a user may install; documentation and development tools are not passed on to anybody.
EXTRAS = ("trainer", "lightning", "ray", "figures")
# Licences that let whoever uses tangentlens use, change and pass on everything. MPL-2.0 asks for changes to its own
# files alone.
ALLOWED = {
    "0bsd",
    "apache-2.0",
    "apache-2.0 with llvm-exception",
    "bsd-2-clause",
    "bsd-3-clause",
    "bsl-1.0",
    "cc0-1.0",
    "cnri-python",
    "isc",
    "mit",
    "mit-0",
    "mpl-2.0",
    "psf-2.0",
    "zlib",
}
# The same in the words that packages use whose metadata is older than SPDX names.
OLDER = {
    "apache": "apache-2.0",
    "apache 2.0": "apache-2.0",
    "apache 2.0 license": "apache-2.0",
    "apache license 2.0": "apache-2.0",
    "apache software license": "apache-2.0",
    "3-clause bsd license": "bsd-3-clause",
    "bsd": "bsd-3-clause",
    "bsd license": "bsd-3-clause",
    "isc license": "isc",
    "isc license (iscl)": "isc",
    "mit license": "mit",
    "the mit license (mit)": "mit",
    "mozilla public license 2.0 (mpl 2.0)": "mpl-2.0",
    "python software foundation license": "psf-2.0",
}


def needed(*lines):
    """The distributions that requirements bring, with all that those need in turn."""
    wanted, seen = [Requirement(line) for line in lines], {}
    while wanted:
        one = wanted.pop()
        if str(one) in seen:
            continue
        seen[str(one)] = found = distribution(one.name)
        extras = one.extras or {""}
        needs = [Requirement(line) for line in found.requires or []]
        wanted += [need for need in needs if not need.marker or any(need.marker.evaluate({"extra": e}) for e in extras)]
    return {found.name: found for found in seen.values()}


def licence(metadata):
    """What a distribution says of its licence: an SPDX expression, or the words of its classifiers or first line."""
    kinds = [line.split(" :: ")[-1] for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    first = next(iter((metadata.get("License") or "").strip().splitlines()), "")
    return metadata.get("License-Expression") or " OR ".join(kinds) or first.strip()


def is_allowed(expression):
    """Whether one of the alternatives of an expression holds nothing but allowed licences."""
    alternatives = [re.split(r" and ", one) for one in expression.lower().split(" or ")]
    return any(all(OLDER.get(name, name) in ALLOWED for name in names) for names in alternatives)


def test_every_licence_is_one_that_may_be_passed_on():
    found = {name: licence(one.metadata) for name, one in needed(f"tangentlens[{','.join(EXTRAS)}]").items()}
    assert {"torch", "ray", "lightning", "kaleido", "accelerate"} <= found.keys()
    assert {name: words for name, words in found.items() if not is_allowed(words)} == {}


@pytest.mark.parametrize("words", ["", "GPL-3.0-only", "MIT AND GPL-2.0-or-later", "Proprietary", "AGPL-3.0"])
def test_other_licences_are_not_allowed(words):
    assert not is_allowed(words)
    assert is_allowed(f"{words} OR MIT")


# Commands in one process in which whoever asks for a name or a connection beyond this machine is written down, and
# gets none. An audit hook cannot be got round by code of Python; Rust and C++ are not seen.
WATCHED = """
import json
import sys

ASKING = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")
asked = []


def is_here(arguments):
    address = next((one for one in arguments if isinstance(one, (str, bytes, tuple))), None)
    host = address[0] if isinstance(address, tuple) else address
    return host in (None, "", "127.0.0.1", "::1", "localhost") or str(host).startswith("/")


def watch(event, arguments):
    if event in ASKING and not is_here(arguments):
        asked.append(f"{event} {arguments[-1 if event == 'socket.connect' else 0]}")
        raise ConnectionRefusedError("there is no network")


sys.addaudithook(watch)
from tangentlens.cli import main

codes = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["tangentlens", *words]
    try:
        main()
    except SystemExit as left:
        codes.append(left.code or 0)
print()
print(json.dumps({"asked": asked, "codes": codes}))
"""


def watched(folder, *commands):
    """What the commands asked of the network, and their exit codes."""
    # Tests tell the hub's client to be silent, which a user does not; and a proxy would be asked in place of others.
    ours = re.compile(r"HF_|.*_proxy$", re.IGNORECASE)
    env = {name: value for name, value in os.environ.items() if not ours.match(name)} | {"HF_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, json.dumps(commands)], capture_output=True, text=True, env=env, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    return told["asked"], told["codes"]


def test_no_command_goes_to_the_network_unless_asked_to_download(tmp_path):
    save_tiny(tmp_path / "model")
    small = ["--out", "runs/profile", "--quiet", "--sites", "resid.1", "--measures", "anisotropy"]
    commands = [
        ["--version"],
        ["doctor"],
        ["demo", "--steps", "2", "--sites", "resid.1", "--rank", "4", "--out", "runs/demo", "--quiet"],
        ["profile", "model", *small],
        ["report", "runs/demo", "runs/profile"],
        ["claims", "runs/demo"],
        ["study", "--list"],
    ]
    asked, codes = watched(tmp_path, *commands)
    assert asked == []
    assert codes == [0] * len(commands)


def test_a_download_that_was_asked_for_is_seen(tmp_path):
    """The watcher of the test above sees what there is to see: a name to look up, for a model and for a text."""
    asked, codes = watched(tmp_path, ["profile", "somebody/model"], ["enwik8", "--quiet"])
    assert any("huggingface.co" in one for one in asked)
    assert any("mattmahoney.net" in one for one in asked)
    assert codes == [1, 1]


TRAP = """
from pathlib import Path

from transformers import LlamaConfig

Path({marker!r}).touch()


class Config(LlamaConfig):
    model_type = "trap"
"""


@pytest.mark.parametrize("trusted", [False, True])
def test_code_beside_a_model_is_run_only_if_asked(trusted, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder, marker = save_tiny(tmp_path / "model"), tmp_path / "ran"
    config = json.loads((folder / "config.json").read_text())
    changed = config | {"model_type": "trap", "auto_map": {"AutoConfig": "trap.Config"}}
    (folder / "config.json").write_text(json.dumps(changed))
    (folder / "trap.py").write_text(TRAP.format(marker=str(marker)))
    with contextlib.nullcontext() if trusted else pytest.raises(InputError, match="custom code"):
        check_model(str(folder), Loading(trust_remote_code=trusted))
    assert marker.exists() == trusted


def test_weights_in_a_pickle_are_refused_unread(tmp_path):
    folder, marker = save_tiny(tmp_path / "model"), tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return Path.touch, (marker,)

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"holds pytorch_model.bin, a pickle, which can run any code"):
        load_model(str(folder))
    assert not marker.exists()
