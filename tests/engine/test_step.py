from infercast.engine.step import StepShape, constant_timer


def test_a_step_of_single_tokens_is_a_decode_step():
    assert StepShape([1, 1], [5, 9], 2).is_decode
    assert not StepShape([1, 2], [5, 9], 2).is_decode
    assert StepShape([1, 2], [5, 9], 2).num_tokens == 3


def test_a_constant_timer_gives_every_step_the_same_time():
    estimate = constant_timer(0.01)(StepShape([1], [0], 1), steps=3)
    assert estimate.gpu_seconds.tolist() == [0.01] * 3
    assert estimate.kernel_seconds.shape == (3, 1)
