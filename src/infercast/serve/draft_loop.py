"""The loop of an engine that drafts: steps are timed and taken in one by one, for nobody knows what they will yield."""

from __future__ import annotations

from infercast.serve.loop import Loop, Step
from infercast.serve.scheduler.draft_plan import DraftPlan
from infercast.serve.scheduler.sequence import Plan


class DraftLoop(Loop):
    """One engine while it runs; its timer is asked with a `DraftShape`."""

    def _time_beside(self, plan: Plan) -> Step:
        """What a step takes."""
        assert isinstance(plan, DraftPlan)
        shape, count = plan.shape, len(plan.sequences)
        numbers = (count, len(self.scheduler.waiting), shape.num_tokens, shape.total_computed, shape.num_sampled)
        estimate = self.time_step(shape)
        if plan.num_prompts:
            estimate = self.conditions.meet(estimate, self.timeline.clock, self.timeline.gpu_free)
        return Step(plan, numbers, estimate, shape)

    def _has_prompts(self, step: Step) -> bool:
        """Whether it computes more than a token and its drafts of each sequence."""
        assert isinstance(step.plan, DraftPlan)
        return step.plan.num_prompts > 0

    def _take_in(self, step: Step, time: float) -> None:
        """The result of a step is there: all tokens of a sequence leave together."""
        plan = step.plan
        assert isinstance(plan, DraftPlan)
        done = self.scheduler.complete(plan)
        self.record.tokens(time, len(plan.received), plan.received, done)
        for sequence in done:
            self.clients.answer(self.record.last_end, sequence.index)
