"""Decoding of streams: the same as Viterbi where nothing is forced, however the stream is cut."""

from __future__ import annotations

import itertools
import math

import pytest

torch = pytest.importorskip("torch")

from lab.errors import BadDataError, UsageError  # noqa: E402
from lab.rooms.semicrf.model import api, naive, paths  # noqa: E402
from lab.rooms.semicrf.model.head import SemiCRF  # noqa: E402
from lab.rooms.semicrf.model.online import OnlineDecoder  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from tests.rooms.semicrf.problems import inputs_of, random_problem  # noqa: E402

pytestmark = pytest.mark.torch
INF = math.inf


def decoder_of(problem, lag=None):
    return OnlineDecoder(problem.transition, problem.duration_KC, problem.start_C, problem.end_C, lag=lag)


def decoded(problem, lag=None, sizes=(1,)):
    """Everything that a stream gives, pushed in chunks of these sizes in turn; and the decoder."""
    decoder, done, at, turn = decoder_of(problem, lag), [], 0, 0
    while at < problem.shape[1]:
        size = sizes[turn % len(sizes)]
        done += decoder.push(problem.score_BTC[0, at : at + size])
        at, turn = at + size, turn + 1
    return done + decoder.finish(), decoder


def whole_numbers(problem, low, high, seed):
    """The same shapes with a few whole numbers: sums are exact, and ties everywhere."""
    g = torch.Generator().manual_seed(seed)
    return problem.with_floats(
        [
            torch.where(
                torch.isneginf(value),
                value,
                torch.randint(low, high + 1, value.shape, generator=g).double(),
            )
            for value in problem.floats()
        ]
    )


@pytest.mark.parametrize("by_duration", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_without_a_forced_segment_the_result_is_viterbis_ties_included(by_duration, ties):
    seen = 0
    for seed in range(60):
        g = torch.Generator().manual_seed(seed)
        frames, longest, labels = (int(torch.randint(1, n + 1, (), generator=g)) for n in (40, 12, 5))
        problem = random_problem(
            1, frames, longest, labels, masked=0.3 * (seed % 3 == 0), by_duration=by_duration, seed=seed
        )
        if ties:
            problem = whole_numbers(problem, -1, 1, seed)
        score, path = naive.viterbi(problem) if ties else paths.viterbi(problem)
        if not path[0]:
            with pytest.raises(BadDataError, match="no segmentation fits"):
                decoded(problem)
            continue
        seen += 1
        for lag in (None, frames, frames + 9):
            done, decoder = decoded(problem, lag)
            assert [tuple(x[:3]) for x in done] == path[0], seed
            assert not any(x.forced for x in done)
            assert decoder.score == pytest.approx(score.item(), abs=1e-12)
    assert seen > 30


def hard(seed, frames=60):
    """Long ambiguity: scores of two labels differ little, and much later."""
    return random_problem(1, frames, 9, 4, scale=0.3, seed=seed, tilt=0.1)


@pytest.mark.parametrize("lag", [None, 0, 1, 5, 17])
def test_the_cuts_of_a_stream_change_nothing(lag):
    for seed in range(8):
        problem = hard(seed)
        done, decoder = decoded(problem, lag)
        for sizes in ((60,), (7,), (1, 13, 2)):
            again, other = decoded(problem, lag, sizes)
            assert again == done and other.score == decoder.score
        decoder, flat = decoder_of(problem, lag), []
        for frame_C in problem.score_BTC[0]:
            flat += decoder.push(frame_C)
        assert flat + decoder.finish() == done


@pytest.mark.parametrize("lag", [0, 1, 5, 17])
def test_a_segment_is_out_at_most_lag_frames_after_its_end_and_all_tile_the_stream(lag):
    forced = 0
    for seed in range(8):
        problem = hard(seed)
        decoder, done, at = decoder_of(problem, lag), [], 0
        for t, frame_C in enumerate(problem.score_BTC[0]):
            new = decoder.push(frame_C)
            assert all(t + 1 - segment.end <= lag for segment in new)
            done += new
        done += decoder.finish()
        for start, end, label, _ in done:
            assert start == at and end - start <= 9 and 0 <= label < 4
            at = end
        assert at == 60
        forced += sum(segment.forced for segment in done)
        assert decoder.score <= api.viterbi(**inputs_of(problem))[0].item() + 1e-9
        path = [segment[:3] for segment in done]
        assert decoder.score == pytest.approx(naive.path_score(problem, 0, path).item(), abs=1e-9)
    assert forced > 0


def test_what_is_not_forced_belongs_to_the_best_path_until_the_first_forced_one():
    for seed in range(10):
        problem = hard(seed)
        done, _ = decoded(problem, lag=6)
        first = next((at for at, segment in enumerate(done) if segment.forced), len(done))
        best, _ = decoded(problem)
        assert done[:first] == best[:first]


def survivors(problem, frames, longest, labels):
    """The best path of each way to go on: an open segment of each label that ends 0..K-1 frames later."""
    found = []
    for more in range(longest):
        score = torch.nn.functional.pad(problem.score_BTC[:, :frames], (0, 0, 0, more))
        starts = torch.zeros_like(score)
        starts[:, frames:] = -INF
        for label in range(labels):
            end = torch.full((labels,), -INF).double()
            end[label] = 0.0
            model = make_problem(
                score,
                problem.transition,
                problem.duration_KC,
                None,
                problem.start_C,
                end,
                seg_start_BTC=starts,
            )
            found += [path for path in naive.viterbi(model)[1] if path]
    return found


def test_segments_come_out_as_soon_as_no_later_frame_can_change_them():
    out = 0
    for seed in range(8):
        problem = whole_numbers(random_problem(1, 9, 3, 2, masked=0.2, seed=seed), -9, 9, seed)
        decoder, done = decoder_of(problem), []
        for t, frame_C in enumerate(problem.score_BTC[0]):
            paths = survivors(problem, t + 1, 3, 2)
            if not paths:
                break
            done += [segment[:3] for segment in decoder.push(frame_C)]
            columns = zip(*paths, strict=False)
            common = [column[0] for column in itertools.takewhile(lambda c: len(set(c)) == 1, columns)]
            assert done == common, (seed, t)
        out += len(done)
    assert out > 8


@pytest.mark.parametrize(("longest", "lag", "tilt"), [(10, 25, 0.0), (40, 5, 1.0)])
def test_memory_does_not_grow_with_the_stream(longest, lag, tilt):
    g, labels = torch.Generator().manual_seed(0), 3
    duration = 0.1 * torch.randn(longest, labels, generator=g) + tilt * torch.arange(longest)[:, None]
    decoder = OnlineDecoder(torch.zeros(labels, labels), duration, lag=lag)
    sizes = []
    for _ in range(40):
        for frame_C in 0.1 * torch.randn(25, labels, generator=g):
            decoder.push(frame_C)
            assert decoder.buffered <= lag
        arrays = [value for value in vars(decoder).values() if hasattr(value, "nbytes")]
        arrays += [*decoder._parents, *decoder._entering]
        assert not [x for x in vars(decoder).values() if isinstance(x, (list, dict, set))]
        sizes.append(sum(value.nbytes for value in arrays))
    bound = 8 * (12 * longest * labels + labels * labels + lag * labels + 10 * labels)
    assert max(sizes) <= bound


def test_a_long_stream_keeps_its_digits(monkeypatch):
    from lab.rooms.semicrf.model import online

    problem = random_problem(1, 200, 6, 3, seed=3)
    right, decoder = decoded(problem)
    monkeypatch.setattr(online, "REBASED", 16)
    moved, other = decoded(problem)
    assert moved == right
    assert other.score == pytest.approx(decoder.score, abs=1e-9)


@pytest.mark.parametrize("large", [-1e30, 1e30, 1e12])
def test_a_frame_of_large_scores_swallows_nothing_of_the_others(large):
    for seed in range(10):
        problem = random_problem(1, 12, 3, 3, seed=seed)
        problem.transition.fill_diagonal_(-INF)  # neighbours of one label may swap durations: a tie
        problem.score_BTC[0, [0, 5, 11]] = torch.tensor([[large], [-large], [large]]).double()
        problem.score_BTC[0, 8, 0] = -1e30
        score, best = api.viterbi(**inputs_of(problem))
        done, decoder = decoded(problem)
        assert [tuple(x[:3]) for x in done] == best[0]
        assert decoder.score == score.item()


def test_one_label_one_frame_and_no_frame_are_streams_too():
    one = OnlineDecoder(torch.zeros(1, 1), torch.zeros(2, 1), lag=0)
    assert one.finish() == [] and one.score == 0
    one = OnlineDecoder(torch.zeros(1, 1), torch.tensor([[1.0], [0.0]]))
    assert one.push(torch.ones(0, 1)) == []
    assert [tuple(x) for x in one.push(torch.ones(1)) + one.finish()] == [(0, 1, 0, False)]
    assert one.score == 2.0


@pytest.mark.parametrize("bad", [math.nan, INF])
@pytest.mark.parametrize("name", ["transition", "duration_KC", "start_C", "end_C"])
def test_a_stream_is_never_decoded_by_parameters_with_nan_or_inf(name, bad):
    shapes = {"transition": (2, 2), "duration_KC": (3, 2), "start_C": (2,), "end_C": (2,)}
    given = {other: torch.zeros(shape) for other, shape in shapes.items()}
    given[name].view(-1)[-1] = bad
    with pytest.raises(BadDataError, match=r"NaN or \+inf in "):
        OnlineDecoder(**given)


def test_what_cannot_be_decoded_is_named():
    decoder = OnlineDecoder(torch.zeros(2, 2), torch.zeros(3, 2))
    with pytest.raises(UsageError, match=r"frames must be \(2,\) or \(t, 2\)"):
        decoder.push(torch.zeros(4, 3))
    with pytest.raises(BadDataError, match=r"NaN or \+inf among the scores of frame 2"):
        decoder.push(torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, math.nan]]))
    decoder.push(torch.zeros(4, 2))
    with pytest.raises(BadDataError, match="no segmentation fits the first 5 frames"):
        decoder.push(torch.full((2, 2), -INF))
    done = OnlineDecoder(torch.zeros(2, 2), torch.zeros(3, 2), end_C=torch.full((2,), -INF))
    done.push(torch.zeros(3, 2))
    with pytest.raises(BadDataError, match="no segmentation fits"):
        done.finish()
    with pytest.raises(UsageError, match="lag must be 0 or more"):
        OnlineDecoder(torch.zeros(2, 2), torch.zeros(3, 2), lag=-1)
    for lag in (math.nan, 1.5):  # no number is below nan, so it never forced
        with pytest.raises(TypeError, match="integer"):
            OnlineDecoder(torch.zeros(2, 2), torch.zeros(3, 2), lag=lag)
    for frames in (torch.zeros(2, dtype=torch.complex64), [0.0, 0.0]):
        with pytest.raises(UsageError, match="frames must be a tensor of real numbers, got"):
            OnlineDecoder(torch.zeros(2, 2), torch.zeros(3, 2)).push(frames)
    with pytest.raises(UsageError, match="cannot depend on the frame"):
        OnlineDecoder(torch.zeros(1, 1, 2, 2), torch.zeros(3, 2))
    over = OnlineDecoder(torch.zeros(2, 2), torch.zeros(3, 2))
    over.push(torch.zeros(2))
    over.finish()
    with pytest.raises(UsageError, match="finished"):
        over.push(torch.zeros(2))


def test_the_head_decodes_a_stream_as_it_decodes_a_sequence():
    torch.manual_seed(0)
    head = SemiCRF(3, 4, allowed_CC=torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]]).bool())
    score = torch.randn(1, 30, 3)
    decoder = head.online(lag=30)
    done = decoder.push(score[0]) + decoder.finish()
    assert [segment[:3] for segment in done] == head.decode(score)[0].segments
    assert decoder.score == pytest.approx(head.decode(score)[0].score)


@pytest.mark.parametrize("by_duration", [False, True])
def test_a_stream_that_ends_before_its_only_survivor_planned_to_ends_it_early(by_duration):
    duration = torch.full((4, 1), -3.0)
    duration[3] = 5.0
    transition = torch.tensor([[[0.5]], [[0.25]], [[0.0]], [[-0.5]]]) if by_duration else torch.zeros(1, 1)
    decoder = OnlineDecoder(transition, duration, lag=0)
    done = decoder.push(torch.zeros(6, 1)) + decoder.finish()
    assert [segment[:3] for segment in done] == [(0, 4, 0), (4, 6, 0)]
    assert done[1].forced
    assert decoder.score == 5.0 - 3.0 + (0.25 if by_duration else 0.0)
