"""Folders and GGUF headers: the library's own tokens, one BOS, every EOS, specials out of reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import tokenizer_files as files
from nearpeak.models import pre_tokenizers as ours
from nearpeak.models.tokenizer import Tokenizer as OurTokenizer
from nearpeak.models.tokenizer import read_tokenizer
from nearpeak.records.errors import UserError

MANY = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SPECIALS = ["<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"]
PARTS = ["the user's ", "12345", " HelloWorld", "don't\n\n", " ", "  ", "\t", "\n", "Größe", "東京", "😀", "\r\n", "½"]
LETTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n\t'sdmtl0123456789éÅ東😀\u0301▁<|_im>")
TEXT = st.text(LETTERS, max_size=60) | st.lists(st.sampled_from(PARTS), max_size=15).map("".join)


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """The library's own tokens, special strings in the text taken as text."""
    tokenizer.encode_special_tokens = True
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


# ---- folders ----


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, OurTokenizer, OurTokenizer]:
    """The library's tokenizer, and ours from a folder and from a GGUF file."""
    place = tmp_path_factory.mktemp("smollm")
    tokenizer = files.byte_level("smollm", SPECIALS, ["<think>", "</think>"])
    folder = files.save(place / "model", tokenizer)
    packed = files.write_keys(place / "model.gguf", files.keys_of(tokenizer, "smollm"))
    return tokenizer, read_tokenizer(folder), read_tokenizer(packed)


@MANY
@given(text=TEXT)
def test_folder_and_gguf_give_the_librarys_own_tokens(
    smollm: tuple[Tokenizer, OurTokenizer, OurTokenizer], text: str
) -> None:
    library, folder, packed = smollm
    expected = plain(library, text)
    assert folder.encode(text) == expected
    assert packed.encode(text) == expected
    assert folder.decode(expected) == packed.decode(expected) == text
    assert b"".join(map(folder.token_bytes, expected)) == text.encode()


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_each_familys_cut_is_that_of_its_tokenizer_json(pre: str, tmp_path: Path) -> None:
    library = files.byte_level(pre, SPECIALS, ["<think>"])
    folder = read_tokenizer(files.save(tmp_path / "model", library))
    packed = read_tokenizer(
        files.write_keys(tmp_path / "model.gguf", files.keys_of(library, pre) | {"bos_token_id": 460})
    )

    @MANY
    @given(TEXT)
    def check(text: str) -> None:
        expected = plain(library, text)
        assert folder.encode(text, begin=False) == expected
        assert packed.encode(text, begin=False) == expected

    check()


@pytest.mark.parametrize("name", sorted(ours.KNOWN))
def test_every_known_cut_compiles_and_loses_nothing(name: str, tmp_path: Path) -> None:
    keys = files.keys_of(files.byte_level("gpt-2", SPECIALS), name) | {"bos_token_id": 460}
    packed = read_tokenizer(files.write_keys(tmp_path / "model.gguf", keys))
    text = "".join(files.CORPUS) + "\r\n x" * 3 + "don't HE'LL 1234567 ½² a\u0301 \u00a0\u3000  $€+ ©\n/\n  "
    expected = text.replace("a\u0301", "á") if ours.KNOWN[name].composed else text
    assert packed.decode(packed.encode(text)) == expected


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "don't 12345  go", ["don", "'t", "Ġ12345", "Ġ", "Ġgo"]),
        ("smollm", "a 123", ["a", "Ġ", "1", "2", "3"]),
        ("llama-bpe", "HE'LL 12345!\n\n go", ["HE", "'LL", "Ġ", "123", "45", "!ĊĊ", "Ġgo"]),
        ("qwen2", "12 (go", ["1", "2", "Ġ(", "go"]),
        ("tekken", "HTTPServer aB12/\n", ["HTTPServer", "Ġa", "B", "1", "2", "/Ċ"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", "Ġ", "123", "4"]),
        ("deepseek-v3", "1234東京a_b", ["123", "4", "æĿ±äº¬", "a", "_b"]),
        ("deepseek-coder", "go 12\n", ["go", "Ġ", "1", "2", "Ċ"]),
        ("seed-coder", "12 go!\n", ["1", "2", "Ġgo", "!", "Ċ"]),
        ("falcon", "a,b 1234", ["a", ",", "b", "Ġ", "123", "4"]),
        ("qwen35", "e\u0302a 1", ["Ãªa", "Ġ", "1"]),
    ],
)
def test_cuts_by_hand(name: str, text: str, pieces: list[str]) -> None:
    normalizer, cut = ours.build(ours.KNOWN[name], False)
    text = normalizer.normalize_str(text) if normalizer else text
    assert [piece for piece, _ in cut.pre_tokenize_str(text)] == pieces


def test_transformers_reads_the_same_folder_alike(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    library = files.byte_level("llama-bpe", SPECIALS, ["<think>"], bos="<|begin|>")
    folder = files.save(tmp_path, library, {"bos_token": "<|begin|>", "eos_token": "<|end|>"})
    theirs, mine = transformers.AutoTokenizer.from_pretrained(folder), read_tokenizer(folder)
    for text in [*files.CORPUS, "", " ", "<think>a</think>"]:
        assert mine.encode(text) == theirs(text)["input_ids"]
    assert mine.bos == theirs.bos_token_id
    assert mine.ends == {theirs.eos_token_id}
    assert mine.vocab == len(theirs)


# ---- special tokens in texts ----


@MANY
@given(parts=st.lists(st.sampled_from([*SPECIALS, "<|im_", "start|>", "<", "|>", " ", "user\n", "x"]), max_size=12))
def test_no_text_ever_becomes_a_special_token(
    smollm: tuple[Tokenizer, OurTokenizer, OurTokenizer], parts: list[str]
) -> None:
    library, folder, packed = smollm
    text = "".join(parts)
    for mine in (folder, packed):
        ids = mine.encode(text)
        assert not set(ids) & mine.special_ids
        assert ids == plain(library, text)
        assert mine.decode(ids) == text
        assert any("plain text" in line for line in mine.warnings) == any(special in text for special in SPECIALS)


def test_tokens_that_models_write_themselves_stay_tokens(smollm: tuple[Tokenizer, OurTokenizer, OurTokenizer]) -> None:
    library, folder, packed = smollm
    think = library.token_to_id("<think>")
    for mine in (folder, packed):
        assert mine.encode("<think>x")[0] == think
        assert mine.token_bytes(think) == b"<think>"
        assert think not in mine.special_ids


def test_turn_marks_that_a_file_calls_ordinary_are_special_all_the_same(tmp_path: Path) -> None:
    """DeepSeek's <｜User｜> has "special": false in its tokenizer.json."""
    library = files.byte_level("gpt-2", ["<s>"], ["<｜User｜>", "<think>"])
    keys = files.keys_of(library, "gpt-2")
    for mine in (
        read_tokenizer(files.save(tmp_path, library)),
        read_tokenizer(files.write_keys(tmp_path / "m.gguf", keys)),
    ):
        assert library.token_to_id("<｜User｜>") in mine.special_ids
        assert not set(mine.encode("<｜User｜>hi")) & mine.special_ids


@pytest.mark.parametrize("kind", ["unigram", "words", "pieces", "merged", "whole"])
def test_vocabularies_that_could_spell_a_special_token_do_not(kind: str, tmp_path: Path) -> None:
    """Special strings stand in the model's own vocabulary too; some models would find them in a text by themselves."""
    letters = [*"<s>/ab", "<unk>"]
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("<s>", 0.0), *((x, -3.0) for x in letters[:-1])], 0))
    elif kind == "words":
        tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "ab": 2}, "<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    elif kind == "pieces":
        vocab = {text: number for number, text in enumerate(["<s>", *letters, *(f"##{x}" for x in letters[:-1])])}
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="<unk>"))
    else:
        vocab = {text: number for number, text in enumerate(["<s>", *letters, "<s"])}
        merges = [("<", "s"), ("<s", ">")] if kind == "merged" else []
        tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=kind == "whole", unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<s>"])
    mine = read_tokenizer(files.save(tmp_path, tokenizer, {"bos_token": "<s>", "unk_token": "<unk>"}))
    for text in ("<s>", "a<s>b", "ab <s> ab", "<s><s>"):
        assert tokenizer.token_to_id("<s>") not in mine.encode(text)
    assert mine.token_bytes(mine.bos or 0) == b""


def test_ordinary_tokens_that_a_file_names_stay_in_texts(tmp_path: Path) -> None:
    """A pad token of "!", or an eos_token_id of another tokenizer: neither may take a character out of texts."""
    library = files.byte_level("gpt-2", SPECIALS)
    exclamation, sharp = library.token_to_id("!"), library.token_to_id("#")
    folder = files.save(tmp_path, library, {"pad_token": "!"}, {"eos_token_id": sharp})
    keys = files.keys_of(library, "gpt-2") | {"padding_token_id": exclamation, "eos_token_id": sharp}
    for mine in (read_tokenizer(folder), read_tokenizer(files.write_keys(tmp_path / "m.gguf", keys))):
        assert mine.encode("#!") == [sharp, exclamation]
        assert mine.decode([sharp, exclamation]) == "#!"
        assert mine.ends >= {sharp}
    assert "the ordinary token '#'" in read_tokenizer(folder).warnings[0]


# ---- BOS ----


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
@pytest.mark.parametrize("template_gives", [0, 1, 2])
@pytest.mark.parametrize("adds", [True, False, None])
def test_one_bos_whatever_template_and_post_processor_do(
    pre: str, template_gives: int, adds: bool | None, tmp_path: Path
) -> None:
    """Two of them, as templates and tokenizers each add one: sglang#888, vllm#27515."""
    library = files.byte_level(pre, SPECIALS, bos="<|begin|>" if adds is not False else None)
    template = (
        "{{ bos_token }}" * template_gives + "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    config = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": template}
    bos = library.token_to_id("<|begin|>")
    packed = {"bos_token_id": bos, "eos_token_id": bos + 1, "tokenizer.chat_template": template}
    if adds is not None:
        config["add_bos_token"] = adds  # type: ignore[assignment]
        packed["add_bos_token"] = adds
    elif pre == "gpt-2":
        packed["add_bos_token"] = True
    folder = files.save(tmp_path, library, config)
    gguf = files.write_keys(tmp_path / "m.gguf", files.keys_of(library, pre) | packed)
    for mine in (read_tokenizer(folder), read_tokenizer(gguf)):
        wanted = adds is not False
        assert mine.encode("hi").count(bos) == wanted
        assert mine.encode("").count(bos) == wanted
        assert mine.encode("hi", begin=False).count(bos) == 0
        assert mine.warnings == ()
        ids = mine.encode_chat([{"role": "user", "content": "hi"}])
        assert ids.count(bos) == (wanted or template_gives > 0)
        assert ids[0] == bos or not ids.count(bos)


def test_a_prompt_that_begins_with_the_spelling_of_bos_has_one_and_says_so(tmp_path: Path) -> None:
    library = files.byte_level("llama-bpe", SPECIALS, bos="<|begin|>")
    mine = read_tokenizer(files.save(tmp_path, library, {"bos_token": "<|begin|>"}))
    bos = library.token_to_id("<|begin|>")
    for text in ("<|begin|>hi", "<|begin|><|begin|>hi"):
        assert mine.encode(text) == [bos, *plain(library, "hi")]
        assert len(mine.warnings) == 1
        assert "'<|begin|>'" in mine.warnings[0]
        assert "counts once" in mine.warnings[0]
    mine.encode("hi")
    assert mine.warnings == ()
    assert mine.encode("a <|begin|>").count(bos) == 1


def test_files_that_disagree_on_bos_are_told(tmp_path: Path) -> None:
    library = files.byte_level("llama-bpe", SPECIALS, bos="<|begin|>")
    mine = read_tokenizer(files.save(tmp_path, library, {"bos_token": "<|begin|>", "add_bos_token": False}))
    assert "add_bos_token is false, tokenizer.json does add one" in mine.warnings[0]
    assert mine.bos not in mine.encode("hi")


@pytest.mark.parametrize("kind", ["roberta", "bert", "sequence", "two"])
def test_other_post_processors(kind: str, tmp_path: Path) -> None:
    library = files.byte_level("gpt-2", SPECIALS)
    first, second = (library.token_to_id(text) for text in SPECIALS[:2])
    front = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", first)])
    both = processors.TemplateProcessing(
        single="<|begin|> <|end|> $A <|end|>", special_tokens=[("<|begin|>", first), ("<|end|>", second)]
    )
    made: dict[str, tuple[Any, list[int]]] = {
        "roberta": (processors.RobertaProcessing(("<|end|>", second), ("<|begin|>", first)), [first]),
        "bert": (processors.BertProcessing(("<|end|>", second), ("<|begin|>", first)), [first]),
        "sequence": (processors.Sequence([processors.ByteLevel(trim_offsets=False), front]), [first]),
        "two": (both, [first, second]),
    }
    library.post_processor, begin = made[kind]
    mine = read_tokenizer(files.save(tmp_path, library, {"bos_token": "<|begin|>"}))
    assert mine.encode("hi") == [*begin, *plain(library, "hi")]


# ---- EOS ----


def test_every_source_of_eos_counts(tmp_path: Path) -> None:
    """config.json names one, the model ends its turns with another: vllm#4180, exllamav2#449."""
    library = files.byte_level("gpt-2", [*SPECIALS, "<|a|>", "<|b|>"])
    token = library.token_to_id
    folder = files.save(
        tmp_path,
        library,
        {"eos_token": {"__type": "AddedToken", "content": "<|end|>"}},
        {"eos_token_id": [token("<|im_end|>"), token("<|a|>")]},
        {"eos_token_id": token("<|a|>"), "text_config": {"eos_token_id": token("<|b|>")}},
    )
    assert read_tokenizer(folder).ends == {token(text) for text in ("<|end|>", "<|im_end|>", "<|a|>", "<|b|>")}
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<|im_start|>"}')
    assert read_tokenizer(folder).ends == {token(text) for text in ("<|end|>", "<|im_end|>", "<|a|>", "<|b|>")}
    (folder / "tokenizer_config.json").unlink()
    assert token("<|im_start|>") in read_tokenizer(folder).ends


def test_gguf_ends_are_the_keys_and_the_names_that_always_end(tmp_path: Path) -> None:
    library = files.byte_level("gpt-2", ["<|begin|>", "<|eot_id|>", "<|fin|>", "<|end|>", "<|m|>"])
    token = library.token_to_id
    keys = files.keys_of(library, "gpt-2") | {"eos_token_id": token("<|fin|>"), "eom_token_id": token("<|m|>")}
    mine = read_tokenizer(files.write_keys(tmp_path / "m.gguf", keys))
    assert mine.ends == {token(text) for text in ("<|fin|>", "<|eot_id|>", "<|end|>", "<|m|>")}
    harmony = files.byte_level("gpt-2", ["<|return|>", "<|call|>", "<|end|>"])
    mine = read_tokenizer(files.write_keys(tmp_path / "h.gguf", files.keys_of(harmony, "gpt-2")))
    assert mine.ends == {harmony.token_to_id("<|return|>"), harmony.token_to_id("<|call|>")}


def test_padding_beyond_the_vocabulary_adds_no_text_and_may_end(tmp_path: Path) -> None:
    library = files.byte_level("gpt-2", SPECIALS)
    vocab = library.get_vocab_size()
    folder = files.save(tmp_path, library, None, {"eos_token_id": vocab + 5}, {"vocab_size": vocab + 10})
    mine = read_tokenizer(folder)
    assert mine.vocab == vocab
    assert mine.ends == {vocab + 5}
    assert mine.token_bytes(vocab + 5) == b""


@pytest.mark.parametrize("token", [-1, None, 2**31, 2**63, 1.5, True, "x", [2, -1]])
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_ends_outside_the_vocabulary_are_refused(token: Any, file: str, tmp_path: Path) -> None:
    library = files.byte_level("gpt-2", SPECIALS)
    folder = files.save(tmp_path, library, None, {}, {"vocab_size": 464})
    value = library.get_vocab_size() if token is None else token
    (folder / file).write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(UserError, match=f"{file}: eos_token_id is ") as caught:
        read_tokenizer(folder)
    assert "464 tokens count from 0 to 463" in str(caught.value) or "whole number" in str(caught.value)


@pytest.mark.parametrize("token", [-1, 466, 2**31, 2**63, True, 1.0])
def test_tokens_from_outside_are_bounded(token: int, smollm: tuple[Tokenizer, OurTokenizer, OurTokenizer]) -> None:
    mine = smollm[1]
    assert mine.vocab == 466
    mine.check_ids([0, 465], "stop token")
    with pytest.raises(UserError, match=f"stop token is {token}"):
        mine.check_ids([0, token], "stop token")
    if not 0 <= token < 2**31:
        with pytest.raises(UserError, match="a token is"):
            mine.token_bytes(token)


# ---- GGUF's SentencePiece ----


@pytest.mark.parametrize("space", [True, False])
def test_sentence_piece_joins_by_score_and_falls_back_to_bytes(space: bool, tmp_path: Path) -> None:
    keys = files.spm_keys() | {"add_space_prefix": space}
    mine = read_tokenizer(files.write_keys(tmp_path / "m.gguf", keys))

    @MANY
    @given(TEXT.filter(lambda text: "▁" not in text))
    def check(text: str) -> None:
        ids = mine.encode(text)
        assert ids == [1, *files.spm_encode(text, space)]
        assert b"".join(map(mine.token_bytes, ids)).decode() == (" " if space and text else "") + text

    check()
    assert not set(mine.encode("<s></s><unk><0x41>", begin=False)) & {0, 1, 2, 3 + 0x41}


def test_sentence_piece_equals_a_tokenizer_json_that_says_the_same(tmp_path: Path) -> None:
    """As Llama 2's: Prepend and Replace, merges, byte fallback."""
    every = files.pieces()
    vocab = {text: number for number, (text, _, _) in enumerate(every)}
    ordinary = sorted((-score, text) for text, score, its in every if its == 1)
    merges = [
        (text[:cut], text[cut:])
        for _, text in ordinary
        for cut in range(len(text) - 1, 0, -1)
        if text[:cut] in vocab and text[cut:] in vocab
    ]
    library = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence(steps)
    library.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    folder = read_tokenizer(files.save(tmp_path, library, {"bos_token": "<s>", "eos_token": "</s>"}))
    packed = read_tokenizer(files.write_keys(tmp_path / "m.gguf", files.spm_keys()))
    for text in [*files.CORPUS, "a", " a", "  ", "😀</s>"]:
        expected = plain(library, text)
        assert folder.encode(text, begin=False) == packed.encode(text, begin=False) == expected
        assert folder.decode(expected) == packed.decode(expected) == " " + text
    assert folder.ends == packed.ends == {2}


def test_user_defined_pieces_are_found_before_anything_else(tmp_path: Path) -> None:
    """Gemma's runs of line breaks and spaces."""
    keys = files.spm_keys([("\v\v", 4), ("   ", 4), ("<start_of_turn>", 4)]) | {"add_space_prefix": False}
    mine = read_tokenizer(files.write_keys(tmp_path / "m.gguf", keys))
    first = len(files.pieces())
    assert mine.encode("\v\v   ", begin=False) == [first, first + 1]
    assert mine.decode([first, first + 1]) == "\v\v   "
    assert first + 2 in mine.special_ids


def test_phi_3s_turn_marks_swallow_white_space_in_gguf_too(tmp_path: Path) -> None:
    template = "{{ '<|user|>\n' + messages[0].content + '<|end|>\n' }}"
    keys = files.spm_keys([("<|user|>", 3), ("<|end|>", 3)]) | {
        "tokenizer.chat_template": template,
        "add_bos_token": False,
    }
    first = len(files.pieces())
    phi = read_tokenizer(files.write_keys(tmp_path / "m.gguf", keys, "phi3"))
    assert phi.encode_chat([{"role": "user", "content": "the"}]) == [first, *files.spm_encode("the"), first + 1]
    other = read_tokenizer(files.write_keys(tmp_path / "o.gguf", keys, "llama"))
    assert other.encode_chat([{"role": "user", "content": "the"}]) == [
        first, *files.spm_encode("\nthe"), first + 1, *files.spm_encode("\n")
    ]  # fmt: skip


def test_bytes_that_no_token_has_are_told_when_a_prompt_has_them(tmp_path: Path) -> None:
    """SmolLM2's vocabulary lacks eight."""
    library = files.byte_level("gpt-2")
    content = json.loads(library.to_str())
    gone = [text for text in content["model"]["vocab"] if text in ("ó", "ô")]  # 0xF3, 0xF4
    for text in gone:
        del content["model"]["vocab"][text]
    mine = read_tokenizer(files.save(tmp_path, Tokenizer.from_str(json.dumps(content))))
    assert mine.encode("hé 😀")
    assert mine.warnings == ()
    assert mine.decode(mine.encode("a\U000f0000b")) != "a\U000f0000b"
    assert "lacks (0xf3)" in mine.warnings[0]


# ---- refusals ----


def folder_with(tmp_path: Path, **changes: Any) -> Path:
    """A folder in whose tokenizer.json keys are changed; "a.b" is key b in key a."""
    folder = files.save(tmp_path, files.byte_level("gpt-2", SPECIALS))
    content = json.loads((folder / "tokenizer.json").read_text())
    for path, value in changes.items():
        *outer, key = path.split("__")
        place = content
        for part in outer:
            place = place[int(part)] if part.isdigit() else place[part]
        place[key] = value
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": None}, "model is missing"), ({"model__type": "Foo"}, "model.type is 'Foo'; BPE"),
        ({"model__dropout": 0.1}, "model.dropout is 0.1"), ({"model__vocab": {}}, "merges|vocab|Token"),
        ({"model__vocab__a": -1}, "an id in model.vocab is -1"), ({"model__vocab__a": 2**40}, "in model.vocab is 1099"),
        ({"model__vocab__a": 1}, "have the id 1"), ({"model__vocab__a": "x"}, "an id in model.vocab is x"),
        ({"model__merges": [["a", "xyz"]]}, "xyz"), ({"added_tokens": 3}, "added_tokens is no list"),
        ({"added_tokens__0__id": 0}, "'<|begin|>'"), ({"added_tokens__0__id": 470}, "the id 470, its place in the"),
        ({"added_tokens__0__content": ""}, "added_tokens.0. has no content"),
        ({"added_tokens__0__lstrip": 1}, "lstrip is 1"), ({"added_tokens__0__special": None}, "special is no truth"),
        ({"added_tokens__1__content": "<|begin|>"}, "twice|the id"),
        ({"decoder": None}, "decoder is missing"),
        ({"decoder": {"type": "CTC", "pad_token": "", "cleanup": True}}, "decoder 'CTC'"),
        ({"decoder": {"type": "BPEDecoder", "suffix": "</w>"}}, "decoder 'BPEDecoder'"),
        ({"decoder": {"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"}}, "no plain text"),
        ({"post_processor": {"type": "Foo"}}, "post_processor: type 'Foo'"),
        ({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "pair": [],
                             "special_tokens": {}}}, "TemplateProcessing lacks or misses 'x'"),
        ({"post_processor": {"type": "RobertaProcessing", "cls": ["x", 9999]}}, "a token of post_processor is 9999"),
        ({"pre_tokenizer": {"type": "Foo"}}, "tokenizer.json: "), ({"normalizer": {"type": "Foo"}}, "tokenizer.json: "),
        ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}},
         "tokenizer.json: "),
    ],
)  # fmt: skip
def test_damaged_tokenizer_json_is_refused_with_its_key(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, **changes)
    with pytest.raises(UserError, match=words) as caught:
        read_tokenizer(folder)
    assert str(folder / "tokenizer.json") in str(caught.value)


def test_cutting_and_padding_in_the_file_do_not_count(tmp_path: Path) -> None:
    """A prompt was silently cut: ollama#4967, #8099."""
    library = files.byte_level("gpt-2", SPECIALS)
    library.enable_truncation(4)
    library.enable_padding(length=100_000)
    mine = read_tokenizer(files.save(tmp_path, library))
    assert mine.decode(mine.encode("the quick brown fox jumps")) == "the quick brown fox jumps"


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "vocab.json", "vocab.txt"])
def test_folders_with_another_format_only_are_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UserError, match=f"only {name} .*AutoTokenizer"):
        read_tokenizer(tmp_path)


def test_a_folder_without_any_and_a_path_without_anything(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no tokenizer\.json\. Fetch it too"):
        read_tokenizer(tmp_path)
    with pytest.raises(UserError, match="cannot read"):
        read_tokenizer(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("tokenizer_config.json", {"bos_token": "<none>"}, "bos_token is '<none>', which tokenizer.json does not have"),
        ("tokenizer_config.json", {"eos_token": "<none>"}, "eos_token is '<none>'"),
        ("tokenizer_config.json", {"eos_token": 7}, "eos_token is 7; a text"),
        ("special_tokens_map.json", {"bos_token": ["x"]}, "bos_token is"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "entry 'x' is none of a token"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"3": {"content": "<|begin|>"}}}, "the id 3, tok"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9999": {"content": "<new>"}}}, "with id 9999"),
        ("tokenizer_config.json", {"chat_template": [{"name": "a"}]}, "a name and a template are expected"),
        ("tokenizer_config.json", {"chat_template": [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}]},
         "no template named default, but a, b"),
        ("tokenizer_config.json", {"chat_template": 3}, "no template named default, but none"),
    ],
)  # fmt: skip
def test_damaged_files_beside_it_are_refused_with_their_key(
    file: str, values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = files.save(tmp_path, files.byte_level("gpt-2", SPECIALS))
    (folder / file).write_text(json.dumps(values))
    with pytest.raises(UserError, match=words) as caught:
        read_tokenizer(folder)
    assert file in str(caught.value)


def test_tokens_that_only_tokenizer_config_knows_are_added(tmp_path: Path) -> None:
    library = files.byte_level("gpt-2", SPECIALS)
    entries = {"464": {"content": "<|new|>", "special": True}, "465": {"content": "<tool>", "special": False}}
    mine = read_tokenizer(files.save(tmp_path, library, {"added_tokens_decoder": entries}))
    assert mine.vocab == 466
    assert 464 in mine.special_ids
    assert mine.encode("<tool>") == [465]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "t5"}, "model is 't5' .T5's unigrams.; gpt2"), ({"model": "bert"}, "model is 'bert'"),
        ({"model": None}, "model is missing"), ({"pre": "foo"}, "pre is 'foo', which nearpeak does not know"),
        ({"pre": "qwen"}, "Nearest: qwen"), ({"pre": None}, "pre is missing"), ({"pre": "default"}, "pre is 'default'"),
        ({"tokens": None}, "tokens is missing"), ({"tokens": ["a", "b", "a"]}, "'a' is token 0 and 2"),
        ({"token_type": [1, 2]}, "token_type has 2 entries for"), ({"merges": None}, "merges is missing"),
        ({"merges": ["a xyz"]}, "merges.0. is 'a xyz'"), ({"merges": ["ab"]}, "merges.0. is 'ab'"),
        ({"eos_token_id": 464}, "eos_token_id is 464; the model's 464 tokens"),
        ({"bos_token_id": 2**31}, "bos_token_id is"),
        ({"eot_token_id": 2**32 - 1}, "eot_token_id is"), ({"add_bos_token": True}, "bos_token_id is missing"),
        ({"add_bos_token": 1}, "add_bos_token is 1"), ({"tokenizer.chat_template": 5}, "chat_template is no text"),
    ],
)  # fmt: skip
def test_damaged_keys_are_refused_by_name(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = files.keys_of(files.byte_level("gpt-2", SPECIALS), "gpt-2") | changes
    path = files.write_keys(tmp_path / "m.gguf", {key: value for key, value in keys.items() if value is not None})
    with pytest.raises(UserError, match=words) as caught:
        read_tokenizer(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": None}, "scores is missing"), ({"scores": [0.0, 1.0]}, "scores has 2 entries"),
        ({"scores": [float("nan")] * 1000}, "scores holds NaN"), ({"token_type": [9] * 1000}, "token_type.0. is 9"),
    ],
)  # fmt: skip
def test_damaged_sentence_piece_keys_are_refused_by_name(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = files.spm_keys() | changes
    path = files.write_keys(tmp_path / "m.gguf", {key: value for key, value in keys.items() if value is not None})
    with pytest.raises(UserError, match=words):
        read_tokenizer(path)


def test_an_empty_token_adds_nothing(tmp_path: Path) -> None:
    keys = files.keys_of(files.byte_level("gpt-2", SPECIALS), "gpt-2")
    keys |= {"tokens": [*keys["tokens"], "", ""], "token_type": [*keys["token_type"], 1, 5]}
    mine = read_tokenizer(files.write_keys(tmp_path / "m.gguf", keys))
    assert mine.vocab == 466
    assert mine.decode([464, 465]) == ""


def test_texts_too_long_to_split_are_refused_at_once(tmp_path: Path) -> None:
    keys = files.spm_keys([("a" * 60_000, 1)])
    with pytest.raises(UserError, match="texts of thousands of characters"):
        read_tokenizer(files.write_keys(tmp_path / "m.gguf", keys))


def test_a_text_that_is_no_unicode_is_refused(smollm: tuple[Tokenizer, OurTokenizer, OurTokenizer]) -> None:
    with pytest.raises(UserError, match="no valid Unicode at character 2"):
        smollm[1].encode("ab\udc80")
