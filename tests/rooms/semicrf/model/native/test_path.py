import operator
import pickle

import numpy as np
import pytest
import torch

from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.native.path import BatchPaths, Path, PathList, ScoredPaths

TUPLES = [(0, 3, 1), (3, 4, 0), (4, 9, 2)]
ENDS = np.array([[0, 0, 2, 1, 0, 0, 0, 0, 3], [0] * 8 + [2], [0] * 9], np.uint8)
PATH = Path(ENDS[0])


@pytest.mark.parametrize("PATH", [PATH, Path(ENDS[0].astype(np.int32))], ids=["GPU", "CPU"])
def test_a_path_reads_as_the_list_of_its_tuples(PATH):
    assert PATH == TUPLES and TUPLES == PATH and [PATH] == [TUPLES]
    assert list(PATH) == TUPLES and [*reversed(PATH)] == TUPLES[::-1] and len(PATH) == 3
    assert [PATH[at] for at in (0, 1, -1, -3)] == [TUPLES[at] for at in (0, 1, -1, -3)]
    assert PATH[1:] == TUPLES[1:] and (3, 4, 0) in PATH and repr(PATH) == repr(TUPLES)
    assert operator.add(PATH, TUPLES) == TUPLES * 2 == operator.add(TUPLES, PATH) == operator.add(PATH, PATH)
    assert PATH.array.tolist() == [list(one) for one in TUPLES] and PATH.array.dtype == np.int64
    assert PATH.end_n.tolist() == [3, 4, 9] and PATH.label_n.tolist() == [1, 0, 2]
    assert all(type(number) is int for segment in (*PATH, PATH[0]) for number in segment)
    with pytest.raises(IndexError):
        PATH[3]


def test_another_path_is_another():
    longer, relabelled = Path(np.append(ENDS[0], 2)), Path(np.append(ENDS[0][:-1], 2))
    assert longer != PATH and relabelled != PATH and TUPLES[:2] != PATH and tuple(TUPLES) != PATH
    assert Path(ENDS[0].copy()) == PATH == Path(longer.ends_T[:-1])


def test_no_segments_are_the_empty_list():
    empty = Path(ENDS[2])
    assert empty == [] and not empty and empty.array.shape == (0, 3) and list(empty) == []


def test_paths_of_a_sequence_read_as_the_list_of_them():
    found = PathList(ENDS)
    assert found == [TUPLES, [(0, 9, 1)], []] and len(found) == 3
    assert found[0] == PATH == found[-3] and found[1:] == [[(0, 9, 1)], []] and found[2] == []
    assert found == PathList(ENDS.copy()) != PathList(ENDS[:2]) and found[0].label_n.dtype == np.int32
    assert found != [TUPLES] and repr(found) == repr([TUPLES, [(0, 9, 1)], []])
    assert pickle.loads(pickle.dumps(found)) == found and pickle.loads(pickle.dumps(found[0])) == PATH
    assert found[True] == found[1] and operator.add(found, [PATH]) == [*found, TUPLES]
    with pytest.raises(TypeError):
        hash(found)
    with pytest.raises(IndexError):
        found[3]


def test_paths_of_a_batch_read_as_the_list_of_them():
    found = BatchPaths(np.stack([ENDS[:2], ENDS[1:]]))
    both = [[TUPLES, [(0, 9, 1)]], [[(0, 9, 1)], []]]
    assert found == both and [*found] == both == [found[0], found[-1]] == found[:] and len(found) == 2
    assert found != both[::-1] and repr(found) == repr(both) and found + both == both * 2 == both + found
    assert pickle.loads(pickle.dumps(found)) == found and found[0][0] == PATH
    with pytest.raises(IndexError):
        found[2]


def test_scored_paths_read_as_the_list_of_the_pairs():
    found = ScoredPaths(PathList(ENDS), [2.5, -1.0])  # fewer scores: no third path is there
    pairs = [(2.5, TUPLES), (-1.0, [(0, 9, 1)])]
    assert found == pairs and len(found) == 2 and [*found] == pairs == [found[0], found[-1]] == found[:]
    assert found != pairs[:1] and found != [pairs[1], pairs[0]] and repr(found) == repr(pairs)
    assert found + pairs == pairs * 2 == pairs + found == found + found
    assert ScoredPaths(PathList(ENDS), []) == [] and pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(IndexError):
        found[2]


def test_a_decoder_keeps_each_sequences_own_segments():
    generator = torch.Generator().manual_seed(3)
    score_BTC = torch.randn(3, 9, 4, generator=generator)
    score_BTC[1] = -torch.inf
    transition, duration = torch.randn(4, 4, generator=generator), torch.randn(3, 4, generator=generator)
    given = (score_BTC, transition, duration, torch.tensor([9, 9, 4]))
    plain_B, plain = api.viterbi(*given, backend="torch")
    score_B, found = api.viterbi(*given)
    assert found == plain and found[1] == [] and torch.allclose(score_B, plain_B)
    drawn = api.sample(*given, samples=3)
    assert [path[-1][1] for path in drawn[2]] == [4, 4, 4] and drawn[1] == [[], [], []]
