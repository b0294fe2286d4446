"""A run folder of somebody else names no code; what this user began goes on as it was."""

import hmac

import pytest
from omegaconf import OmegaConf

from pruner import signing
from pruner.cli.shared import trust
from pruner.cli.shared.known import composed
from pruner.cli.shared.runs import CONFIG_FILE, read_config, save_config
from pruner.errors import DataError

CODE = {
    "model._target_=os.system": {"model": {"_target_": "os.system", "command": "true"}},
    "policy.draft._target_=subprocess.run": {"policy": {"draft": {"_target_": "subprocess.run"}}},
    "a.1._target_=['x']": {"a": [1, {"_target_": ["x"]}]},
    "workload.path=x.py": {"workload": {"operator": "file", "path": "x.py"}},
    "workload.tasks.0.path=y.py": {"workload": {"tasks": [{"operator": "file", "path": "y.py"}]}},
    "network=package:factory": {"network": "package:factory"},
    "network=/tmp/x.pt2": {"network": "/tmp/x.pt2"},
    "models.own=[a.B]": {"models": {"own": ["a.B"]}},
    "policy.environment=/tmp/x": {"policy": {"environment": "/tmp/x"}},
}


@pytest.fixture
def user(tmp_path, monkeypatch):
    def become(name):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / name))

    become("me")
    return become


@pytest.mark.parametrize("word", CODE)
def test_code_is_this_users_or_named_again(user, tmp_path, word):
    save_config(tmp_path, OmegaConf.create(CODE[word]))
    path = tmp_path / CONFIG_FILE
    assert read_config(path) == CODE[word]
    user("other")
    with pytest.raises(DataError) as error:
        read_config(path)
    assert f"it executes {word}," in str(error.value)
    assert read_config(path, [word]) == CODE[word]
    user("me")
    whole = path.read_text()
    path.write_text(whole.replace(", signed ", ", signed 0"))
    with pytest.raises(DataError, match="it executes"):
        read_config(path)
    path.write_text(whole[whole.index("\n") + 1 :])  # nobody signed it
    with pytest.raises(DataError, match="it executes"):
        read_config(path)


@pytest.mark.parametrize("command", ["train", "tune", "adapt"])
def test_what_conf_names_is_no_code_of_somebody_else(user, tmp_path, command):
    values = composed(command, ["network=resnet18"] if command == "tune" else [])
    values = {name: value for name, value in values.items() if name != "data"}
    assert trust.named_code(values) == []
    save_config(tmp_path, OmegaConf.create({"budget": {"trials": 8}, "seed": 3}))
    user("other")
    assert read_config(tmp_path / CONFIG_FILE).seed == 3


def test_the_key_is_made_once_and_nobody_else_reads_it(user):
    first = signing.signature("text")
    assert signing.signature("text") == first != signing.signature("texts")
    assert signing.key_file().stat().st_mode & 0o777 == 0o600
    assert len(signing.key_file().read_bytes()) == signing.KEY_BYTES
    assert [path.name for path in signing.key_file().parent.iterdir()] == ["key"]
    user("other")
    assert signing.signature("text") != first


def test_without_a_place_for_a_key_nothing_is_signed(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert signing.signature("text") == ""
    assert not signing.is_own("text", "")
    save_config(tmp_path, OmegaConf.create({"seed": 3}))
    assert ", signed" not in (tmp_path / CONFIG_FILE).read_text()
    assert read_config(tmp_path / CONFIG_FILE).seed == 3


def test_with_an_empty_key_nobody_signs(user):
    """As a disk that was full might leave it; anybody knows that key."""
    user("mine")
    signing.signature("x")
    for left in (b"", b"short"):
        signing.key_file().write_bytes(left)
        forged = hmac.new(left, b"options", "sha256").hexdigest()
        assert not signing.is_own("options", forged)
        assert len(signing.key_file().read_bytes()) == signing.KEY_BYTES
