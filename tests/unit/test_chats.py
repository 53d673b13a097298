"""Chats as token ids: many at once are each as if alone, and none is read twice."""

from pathlib import Path

import pytest

from fst_core.config import TinyPolicy
from fst_core.config.model import ConfigError
from fst_core.policy.chats import Chats, load_tokenizer
from fst_core.policy.locate import TINY, locate

CHATS = [
    [{"role": "user", "content": "Say b."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say b."}],
    [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": "Zähle 1 + 2!"}],
]


def fresh() -> Chats:
    path, revision = locate(TinyPolicy())
    return Chats(load_tokenizer(path, revision))


def test_many_at_once_are_each_as_if_alone() -> None:
    order = [2, 0, 2, 1, 0]
    found = fresh().prompts_of([CHATS[i] for i in order])
    assert found == [fresh().prompt_ids(CHATS[i]) for i in order]
    assert len({tuple(ids) for ids in found}) == 3


def test_a_chat_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chats = fresh()
    read: list[int] = []
    template = chats.tokenizer.apply_chat_template

    def watched(conversations: list[object], **options: object) -> object:
        read.append(len(conversations))
        return template(conversations, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(chats.tokenizer, "apply_chat_template", watched)
    first = chats.prompts_of([CHATS[0], CHATS[1], CHATS[0]])
    again = chats.prompts_of([CHATS[1], CHATS[0]])
    more = chats.prompts_of([CHATS[0], CHATS[2]])
    assert read == [2, 1]
    assert again == [first[1], first[0]] and more[0] == first[0]
    assert chats.prompts_of([]) == []


def test_a_folder_without_a_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer can be read there; name a model") as error:
        load_tokenizer(tmp_path, None)
    assert "\n" not in str(error.value)


def test_only_the_latest_chats_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fst_core.policy.chats.PROMPTS_KEPT", 2)
    chats = Chats(load_tokenizer(str(TINY), None))
    asked = [[{"role": "user", "content": "ab" * n}] for n in range(5)]
    plain = [Chats(chats.tokenizer).prompt_ids(chat) for chat in asked]
    assert chats.prompts_of([*asked, *asked]) == plain + plain
    assert chats.prompts_of(asked[1:4]) == plain[1:4]
    assert len(chats._prompts) == 2
