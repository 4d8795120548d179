"""The synthetic corpus, TIMIT folders and files of the benchmark's form."""

from __future__ import annotations

import itertools
import json
import math
import wave
from pathlib import Path

import msgspec
import numpy as np
import pytest

from lab.errors import BadDataError, MissingError
from lab.rooms.semicrf.config import PRESETS, TrainConfig
from lab.rooms.semicrf.workload.corpus import timit
from lab.rooms.semicrf.workload.corpus.load import from_folder, load_corpus
from lab.rooms.semicrf.workload.corpus.utterances import cropped

SMOKE = msgspec.convert(PRESETS["smoke"], TrainConfig)
PHONES_61 = """
aa ae ah ao aw ax ax-h axr ay b bcl ch d dcl dh dx eh el em en eng epi er ey f g gcl h# hh hv ih ix iy
jh k kcl l m n ng nx ow oy p pau pcl q r s sh t tcl th uh uw ux v w y z zh
"""


@pytest.fixture(scope="module")
def corpus():
    return load_corpus(SMOKE)


def test_the_synthetic_corpus_is_the_same_every_time(corpus):
    again = load_corpus(SMOKE)
    assert all(
        np.array_equal(a.features, b.features) and a.segments == b.segments
        for a, b in zip(corpus.train, again.train, strict=True)
    )


def test_segments_tile_every_utterance_and_neighbours_differ(corpus):
    for utterance in [*corpus.train, *corpus.dev, *corpus.test]:
        starts, ends, labels = zip(*utterance.segments, strict=True)
        assert starts == (0, *ends[:-1]) and ends[-1] == len(utterance.features)
        assert all(a != b for a, b in itertools.pairwise(labels))


def test_features_are_normalised_by_the_training_set(corpus):
    frames = np.concatenate([u.features for u in corpus.train])
    assert np.allclose(frames.mean(0), 0, atol=1e-5) and np.allclose(frames.std(0), 1, atol=1e-4)


def test_fixed_length_cuts_and_leaves_out_but_never_pads(corpus):
    short = cropped(corpus, 40)
    assert {len(u.features) for u in short.train} == {40}
    assert len(short.train) == sum(len(u.features) >= 40 for u in corpus.train) < len(corpus.train)
    assert all(u.segments[-1][1] == 40 and all(e > s for s, e, _ in u.segments) for u in short.train)


def test_a_fixed_length_that_nothing_reaches_is_an_error():
    with pytest.raises(BadDataError, match="no utterance is left"):
        load_corpus(msgspec.structs.replace(SMOKE, fixed_length=10_000))


def test_all_61_phones_fold_into_39():
    assert len(timit.PHONES_39) == 39 and set(timit.FOLDING) == set(PHONES_61.split())
    assert set(timit.FOLDING.values()) == set(timit.PHONES_39)
    assert [timit.FOLDING[p] for p in ("ao", "zh", "q", "h#", "el", "en", "hv")] == [
        "aa",
        "sh",
        "sil",
        "sil",
        "l",
        "n",
        "hh",
    ]


def write_sound(path, samples, form="riff"):
    data = (samples * 32767).astype("<i2").tobytes()
    if form == "sphere":
        head = (
            f"NIST_1A\n   1024\nsample_count -i {len(samples)}\nsample_rate -i 16000\n"
            "channel_count -i 1\nsample_byte_format -s2 01\nend_head\n"
        )
        path.write_bytes(head.encode().ljust(1024, b" ") + data)
        return
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(data)


@pytest.fixture
def timit_folder(tmp_path):
    """Two speakers in TRAIN, one in TEST; a SPHERE sentence, one with lower-case names, an SA sentence."""
    dice = np.random.default_rng(1)
    for split, speaker in (("TRAIN", "FAAA0"), ("TRAIN", "MBBB0"), ("TEST", "FCCC0")):
        folder = tmp_path / "TIMIT" / split / "DR1" / speaker
        folder.mkdir(parents=True)
        for stem, end, form in (("SX1", ".WAV", "sphere"), ("si2", ".wav", "riff"), ("SA1", ".WAV", "riff")):
            write_sound(folder / (stem + end), 0.1 * dice.standard_normal(16000), form)
            suffix = ".PHN" if end == ".WAV" else ".phn"
            (folder / (stem + suffix)).write_text(
                "0 3050 h#\n3050 7000 sh\n7000 7400 tcl\n7400 12000 t\n12000 16000 h#\n"
            )
    return tmp_path / "TIMIT"


def test_a_timit_folder_becomes_frames_and_segments(timit_folder):
    rows = list(timit.read_split(timit_folder, "TRAIN"))
    assert [row.name for row in rows] == [
        "DR1_FAAA0_SX1",
        "DR1_FAAA0_SI2",
        "DR1_MBBB0_SX1",
        "DR1_MBBB0_SI2",
    ]
    assert rows[0].features.shape == (101, 39) and np.isfinite(rows[0].features).all()
    names = [timit.PHONES_39[label] for _, _, label in rows[0].segments]
    assert names == ["sil", "sh", "sil", "t", "sil"], (
        "the last frame belongs to the last phone, not to class 0"
    )
    assert rows[0].segments[-1][1] == 101 and rows[0].segments[1][:2] == (19, 44)


def test_preprocess_writes_what_training_reads(timit_folder, tmp_path):
    out = tmp_path / "prepared"
    list(timit.preprocess(timit_folder, out, feature_type="mfcc", n_mfcc=13, n_mels=80))
    assert json.loads((out / "phone_mapping.json").read_text())["phone_to_idx"]["sil"] == 30
    assert json.loads((out / "train_segment_stats.json").read_text())["sh"]["count"] == 4
    read = from_folder(out)
    assert {u.speaker for u in read.train}.isdisjoint({u.speaker for u in read.dev}) and len(read.test) == 2
    direct = load_corpus(msgspec.structs.replace(SMOKE, data=str(timit_folder)))
    assert np.allclose(direct.test[0].features, read.test[0].features, atol=1e-3)


@pytest.mark.parametrize(
    "text, words",
    [("0 100 zz\n", ":1"), ("0 100 sh\n50 60 t\n", ":2"), ("", "no segment"), ("a b c\n", ":1")],
)
def test_a_broken_phn_file_is_named_with_its_line(timit_folder, text, words):
    path = timit_folder / "TEST" / "DR1" / "FCCC0" / "SX1.PHN"
    path.write_text(text)
    with pytest.raises(BadDataError) as caught:
        list(timit.read_split(timit_folder, "TEST"))
    assert "SX1.PHN" in str(caught.value) and words in str(caught.value)


def test_sound_that_is_missing_truncated_or_foreign_is_an_error(timit_folder):
    folder = timit_folder / "TEST" / "DR1" / "FCCC0"
    whole = (folder / "SX1.WAV").read_bytes()
    for content, words in (
        (whole[:5000], "truncated"),
        (b"NIST_1A\n    x", "unreadable NIST SPHERE header"),
        (b"MZ" * 50, "neither NIST"),
    ):
        (folder / "SX1.WAV").write_bytes(content)
        with pytest.raises(BadDataError, match=words):
            list(timit.read_split(timit_folder, "TEST"))
    (folder / "SX1.WAV").unlink()
    with pytest.raises(MissingError, match="no WAV"):
        list(timit.read_split(timit_folder, "TEST"))


@pytest.mark.parametrize("kept_bytes", [44, 1000, 1001, 32042])
def test_a_riff_file_shorter_than_its_header_promises_is_refused(timit_folder, kept_bytes):
    path = timit_folder / "TEST" / "DR1" / "FCCC0" / "si2.wav"
    whole = path.read_bytes()
    assert len(whole) == 32044
    path.write_bytes(whole[:kept_bytes])
    with pytest.raises(BadDataError, match=r"truncated: \d+ of 16000 samples") as caught:
        list(timit.read_split(timit_folder, "TEST"))
    assert "si2.wav" in str(caught.value)
    path.write_bytes(whole + b"odd bytes after the sound")
    assert len(list(timit.read_split(timit_folder, "TEST"))) == 2


def test_a_bad_line_of_a_jsonl_file_is_named(tmp_path):
    good = {"utterance_id": "a", "speaker_id": "s", "features": [[0.0], [1.0]], "segments": [[0, 2, 0]]}
    for broken, words in (
        ({**good, "segments": [[1, 2, 0]]}, "tile the frames: one starts at 1, not at 0"),
        ({**good, "features": [[0.0]] * 4, "segments": [[0, 1, 0]]}, "tile the frames: they cover 1 of 4"),
        ({**good, "segments": [[0, 0, 0], [0, 2, 0]]}, "empty"),
        ({"utterance_id": "a"}, "features"),
        ("{", "not an utterance"),
        ({**good, "features": [[0.0], [None]]}, "utterance a, frame 1, feature 0 is NaN"),
        ({**good, "features": [[1e39], [0.0]]}, "utterance a, frame 0, feature 0 is inf"),
        ({**good, "segments": [[0, 1.9, 0], [1.2, 2, 0]]}, "'float' object"),
        ({**good, "segments": [[0, 2, 1.7]]}, "'float' object"),
    ):
        text = broken if isinstance(broken, str) else json.dumps(broken)
        (tmp_path / "train.jsonl").write_text(json.dumps(good) + "\n" + text + "\n")
        with pytest.raises(BadDataError, match=words) as caught:
            from_folder(tmp_path)
        assert "train.jsonl:2" in str(caught.value)


def row_of(number, speaker, segments, frames=6, values=None):
    features = values or [[float(number), float(frame)] for frame in range(frames)]
    return {"utterance_id": f"u{number}", "speaker_id": speaker, "features": features, "segments": segments}


def corpus_of(folder, train, test):
    for name, rows in (("train", train), ("test", test)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return load_corpus(TrainConfig(data=str(folder)))


def test_what_the_published_preprocessing_writes_is_read_and_counted(tmp_path):
    """Centred windows leave a frame past the last segment; a phone below a hop takes its neighbour's."""
    train = [
        row_of(0, "a", [[0, 3, 1], [3, 5, 2]]),
        row_of(1, "b", [[0, 3, 1], [2, 6, 2]]),
        row_of(2, "c", [[0, 3, 1], [2, 3, 4], [3, 6, 2]]),
        row_of(3, "d", [[0, 6, 1]]),
    ]
    corpus = corpus_of(tmp_path, train, [row_of(9, "e", [[0, 4, 1]])])
    segments = {u.name: u.segments for u in (*corpus.train, *corpus.dev, *corpus.test)}
    assert segments["u0"] == ((0, 3, 1), (3, 6, 2)) and segments["u9"] == ((0, 6, 1),)
    assert segments["u1"] == segments["u2"] == ((0, 3, 1), (3, 6, 2))
    assert [tuple(note) for note in corpus.notes] == [
        (False, "2 utterances: a frame in two segments, which the earlier one keeps"),
        (False, "2 utterances: frames past the last segment, which it got (centred framing)"),
    ]


def test_test_data_that_is_training_data_too_is_suspect(tmp_path):
    whole = [[0, 6, 1]]
    train = [row_of(n, speaker, whole) for n, speaker in enumerate("abcd")]
    (note,) = corpus_of(tmp_path, train, [row_of(9, "a", whole), row_of(8, "z", whole)]).notes
    assert tuple(note) == (True, "1 of 2 test utterances are of training speakers: test figures are too good")
    same_sound = row_of(7, "z", whole, values=train[2]["features"])
    (note,) = corpus_of(tmp_path, train, [same_sound, row_of(1, "y", whole), row_of(8, "x", whole)]).notes
    assert tuple(note) == (
        True,
        "2 of 3 test utterances are training utterances too: test figures are too good",
    )
    assert not corpus_of(tmp_path, train, [row_of(8, "z", whole)]).notes


def test_features_that_say_nothing_are_refused(tmp_path):
    rows = [row_of(n, speaker, [[0, 6, 1]], values=[[0.0, 0.0]] * 6) for n, speaker in enumerate("abcd")]
    with pytest.raises(BadDataError, match="every feature of the training set is constant: all frames are 0"):
        corpus_of(tmp_path, rows, rows)


def test_a_nan_as_python_writes_it_is_named_by_utterance_and_frame(tmp_path):
    rows = [row_of(n, "a", [[0, 6, 1]]) for n in range(3)]
    rows[2]["features"][4][1] = math.nan
    with pytest.raises(BadDataError, match=r"^utterance u2, frame 4, feature 1 is NaN") as caught:
        corpus_of(tmp_path, rows, rows)
    assert str(caught.value.location).endswith("train.jsonl:3")


def test_sound_after_the_last_phone_is_silence_of_its_own():
    sil = timit.PHONES_39.index("sil")
    lines = [(0, 1600, 3), (1600, 3200, 4)]
    assert timit.frames_of(lines, 24, Path("x")) == [(0, 10, 3), (10, 24, 4)]
    assert timit.frames_of(lines, 60, Path("x")) == [(0, 10, 3), (10, 20, 4), (20, 60, sil)]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"features": [[0.0, 1.0], [1.0, 2.0]]}, "utterance b has 2 features per frame, the first 1"),
        ({"segments": [[0, 2, 39]]}, "utterance b has the label 39, and there are 39 phones"),
    ],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_an_utterance_unlike_the_others_is_named(tmp_path, split, change, words):
    """Features of another width were repeated to fit, and a label that no phone has ended far from here."""
    good = {"utterance_id": "a", "speaker_id": "s", "features": [[0.0], [1.0]], "segments": [[0, 2, 0]]}
    for name in ("train", "test"):
        rows = [good, {**good, "utterance_id": "b", **(change if name == split else {})}]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(BadDataError, match=words):
        from_folder(tmp_path)


def write_jsonl(folder, rows):
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def utterances(count, value=0.5):
    row = {"speaker_id": "s", "features": [[value, 0.25]] * 3, "segments": [[0, 3, 0]]}
    return [{**row, "utterance_id": f"u{n}"} for n in range(count)]


def test_frames_without_features_are_named(tmp_path):
    write_jsonl(tmp_path, [*utterances(1), {**utterances(1)[0], "features": [[]] * 3}])
    with pytest.raises(BadDataError, match="no features") as caught:
        from_folder(tmp_path)
    assert "train.jsonl:2" in str(caught.value)


def test_a_training_set_without_an_utterance_is_named(tmp_path):
    write_jsonl(tmp_path, [])
    with pytest.raises(BadDataError, match="no utterance in the training set"):
        from_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unreadable phones"),
        ("{}", "phones_39"),
        ("[]", "unreadable phones"),
        ('{"phones_39": "abc"}', "phones_39"),
        ('{"phones_39": [1, 2]}', "phones_39"),
        ('{"phones_39": ["a", "b", "a"]}', "has a twice"),
    ],
)
def test_a_phone_mapping_that_names_no_labels_is_an_error_with_its_file(tmp_path, text, words):
    write_jsonl(tmp_path, utterances(2))
    (tmp_path / "phone_mapping.json").write_text(text)
    with pytest.raises(BadDataError, match=words) as caught:
        from_folder(tmp_path)
    assert "phone_mapping.json" in str(caught.value)


def test_features_whose_deviation_overflows_are_named_and_not_made_nan(tmp_path):
    write_jsonl(tmp_path, [*utterances(2, 3e38), *utterances(2, -3e38)])
    with pytest.raises(BadDataError, match="feature 0 is too large"):
        from_folder(tmp_path)


def test_phones_of_a_longer_sound_than_there_is_are_refused(timit_folder):
    path = timit_folder / "TEST" / "DR1" / "FCCC0" / "si2.wav"
    write_sound(path, np.zeros(5000))  # whole by its own header, and 16,000 samples are labelled
    with pytest.raises(BadDataError, match="last phone starts at sample"):
        list(timit.read_split(timit_folder, "TEST"))


@pytest.mark.parametrize("feature_type", ["mfcc", "mel"])
def test_a_sound_shorter_than_a_window_is_refused(timit_folder, feature_type):
    path = timit_folder / "TEST" / "DR1" / "FCCC0" / "si2.wav"
    write_sound(path, np.zeros(399))
    with pytest.raises(BadDataError, match="shorter than one window"):
        list(timit.read_split(timit_folder, "TEST", feature_type=feature_type))


def test_a_folder_without_data_says_how_to_make_it(tmp_path):
    (tmp_path / "train.jsonl").mkdir()  # is no file either
    with pytest.raises(MissingError, match="preprocess"):
        load_corpus(msgspec.structs.replace(SMOKE, data=str(tmp_path)))
