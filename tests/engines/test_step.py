from infercast.serve.step import GroupShape, StepShape, constant_timer


def test_a_step_of_single_tokens_is_a_decode_step():
    assert StepShape([1, 1], [5, 9], 2).is_decode
    assert not StepShape([1, 2], [5, 9], 2).is_decode
    assert StepShape([1, 2], [5, 9], 2).num_tokens == 3


def test_a_constant_timer_gives_every_step_the_same_time():
    estimate = constant_timer(0.01)(StepShape([1], [0], 1), steps=3)
    assert (estimate.gpu_seconds, estimate.varying) == ([0.01] * 3, [[0.01] * 3])


def test_a_group_looks_like_its_sequences_one_by_one():
    one_by_one = StepShape([1, 1, 300, 1], [5, 9, 16, 40], 3)
    group = GroupShape(2, 14, lambda: [5, 9], [(300, 16), (1, 40)], 1)
    names = ("new_tokens", "computed", "num_sampled", "num_sequences", "num_tokens", "total_computed", "is_decode")
    assert [getattr(group, name) for name in names] == [getattr(one_by_one, name) for name in names]
    assert group.prompts == one_by_one.prompts == [(300, 16)]


def test_the_lengths_of_a_group_are_worked_out_only_when_asked_for():
    def contexts():
        raise AssertionError("nobody asked")

    assert GroupShape(3, 30, contexts).is_decode
