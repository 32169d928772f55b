from infercast.predict.estimate import Estimate, total


def test_sums_count_every_launch():
    parts = [(Estimate(2.0, 1.0, 4.0, "roofline", "dram"), 3), (Estimate(0.5, 0.5, 1.0, "roofline", "launch"), 4)]
    assert total(parts) == Estimate(8.0, 5.0, 16.0, "roofline", "dram")


def test_a_sum_is_as_good_as_its_weakest_part():
    def of(*sources):
        return total((Estimate(1.0, 1.0, 1.0, source, "dram"), 1) for source in sources).source

    assert of("measured", "measured") == "measured"
    assert of("unseen", "measured") == "unseen"
    assert of("measured", "roofline", "sibling") == "roofline"


def test_the_bound_is_that_of_the_largest_part_with_all_its_launches():
    long, short = Estimate(5.0, 5.0, 5.0, "measured", "tensor"), Estimate(1.0, 1.0, 1.0, "measured", "link")
    assert total([(long, 1), (short, 4)]).bound == "tensor"
    assert total([(long, 1), (short, 6)]).bound == "link"


def test_the_sum_of_nothing_is_nothing():
    assert total([]) == Estimate(0.0, 0.0, 0.0, "measured", "launch")
