"""The scheduler of a KV cache with a host-memory tier, and the copies between the two."""

from __future__ import annotations

from enum import Enum

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.cache.shape import KvShape
from infercast.serve.cache.tiers import HostTier, Offload
from infercast.serve.scheduler.base import Plan, Sequence
from infercast.serve.scheduler.policy import FirstCome, MixingPolicy
from infercast.serve.scheduler.scheduler import Scheduler

# Copies between the KV cache and its tier in the host's memory: which blocks a request has there, and what goes where.
#
# A request's blocks are looked up after those that the GPU has. Blocks are handed over to be stored with the step that
# computes them. Rules as in vLLM 0.25 and 0.32 (kv_connector/v1/offloading/scheduler.py).


PLACES = 32
"""Bits of a block's number that tell its place in a prompt; the others tell what the prompt is."""


class Move:
    """One copy of blocks of a sequence."""

    __slots__ = ("end", "is_store", "keys", "num_bytes", "num_pieces", "sequence")

    def __init__(self, sequence: Sequence, keys: list[int], num_bytes: int, num_pieces: int, *, is_store: bool) -> None:
        self.sequence, self.keys, self.is_store = sequence, keys, is_store
        self.num_bytes, self.num_pieces = num_bytes, num_pieces
        self.end = 0.0
        """When the last byte is there."""


class _Books:
    """Of one request: its blocks' numbers, how many of them were handed over, and its copies under way."""

    __slots__ = ("keys", "met", "moves", "stored")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.met: set[int] = set()
        """Those that it loaded, stored or found stored."""
        self.stored = 0
        self.moves: list[Move] = []


class Moves:
    """What a scheduler asks of the tier, and what it has to copy."""

    def __init__(self, offload: Offload, shape: KvShape, *, in_order: bool = False) -> None:
        groups = len(shape.windows)
        self.offload = offload
        self.tier = HostTier(
            offload.num_blocks // groups,
            offload.store_threshold,
            in_order=in_order,
            by_request=offload.by_request,
        )
        self.loads: list[Move] = []
        """To begin with the step that is being planned ..."""
        self.stores: list[Move] = []
        """... and those to be handed over at the start of the step after it."""
        self.flushed: list[Move] = []
        """What must have ended before the step may begin."""
        self.num_under_way = 0
        self.num_queried = self.num_hit = 0
        """Tokens that were looked for in the tier when requests started, and those found."""
        self._shape, self._size = shape, shape.block_size * offload.factor
        self._windows = [window for window in shape.windows if window]
        self._full = groups - len(self._windows)
        self._books: dict[Sequence, _Books] = {}
        self._being_loaded: set[int] = set()
        self._outlived: dict[Move, None] = {}
        """Stores of requests that have ended, whose blocks others may be given."""

    def look_up(self, sequence: Sequence, computed: int, known: int) -> int | None:
        """Tokens after the ``computed`` ones that the tier has; None: ask again in the next step."""
        books = self._books.setdefault(sequence, _Books())
        if books.moves:
            return None
        keys = self._keys_of(sequence, books, known)
        found = self._find(keys, computed, known)
        if not self.offload.by_request:
            self.tier.touch(keys)
        return found

    def _find(self, keys: list[int], computed: int, known: int) -> int | None:
        size, start = self._size, computed // self._size
        # Where layers have windows, the last token is left to be computed; otherwise that is seen to later.
        most = min(len(keys) * size, known - 1 if self._windows else known)
        if most - computed < size:
            return 0
        count = self.tier.look_up(keys[start:])
        if count is None:
            return None
        found = min(most, size * (start + count)) - computed
        if not count or found < size:
            return 0
        loading = self._being_loaded
        return None if loading and not loading.isdisjoint(keys[start : start + count]) else found

    def begin_load(self, sequence: Sequence, computed: int, found: int) -> None:
        """A request that holds blocks for all of these tokens waits for what was found."""
        books, size = self._books[sequence], self._size
        first, end = computed // size, -(-(computed + found) // size)
        keys = books.keys[first:end]
        self.tier.begin_load(keys)
        books.met.update(keys)
        self._being_loaded.update(keys)
        count = -(-found // self._shape.block_size)
        in_windows = sum([min(count, -(-window // self._shape.block_size)) for window in self._windows])
        move = self._move(sequence, keys, self._full * count + in_windows, is_store=False)
        self.loads.append(move)
        books.stored = end

    def begin_store(self, sequence: Sequence, num_tokens: int) -> bool:
        """Hand over blocks up to so many tokens; False: there is no room, and it has to be tried again."""
        books = self._books.get(sequence)
        if books is None:
            return True
        keys = self._keys_of(sequence, books, num_tokens)
        end = num_tokens // self._size
        if end <= books.stored:
            if not self.offload.stores_ends:
                books.stored = end  # who gave way begins again, and what follows is handed over again
            return True
        new = self.tier.begin_store(keys[books.stored : end], books.met)
        if new is None:
            return False
        books.stored = end
        if new:
            if not self.offload.by_request:
                self.tier.touch(keys)
            count = len(new) * self.offload.factor * (self._full + len(self._windows))
            self.stores.append(self._move(sequence, new, count, is_store=True))
        return True

    def flush(self, sequence: Sequence) -> None:
        """Who gives way lets go of blocks that are being stored: that has to end first."""
        books = self._books.get(sequence)
        if books is not None:
            self.flushed += books.moves

    def reuse(self, sequence: Sequence, num_tokens: int) -> None:
        """A request begins with blocks that another one left, which may still be being stored."""
        if self._outlived:
            books = self._books[sequence]
            mine = set(books.keys[: num_tokens // self._size])
            self.flushed += [move for move in self._outlived if not mine.isdisjoint(move.keys)]

    def end(self, move: Move) -> None:
        """The scheduler hears that a copy has ended."""
        self.num_under_way -= 1
        if move.is_store:
            self.tier.end_store(move.keys)
            self._outlived.pop(move, None)
        else:
            self.tier.end_load(move.keys)
            self._being_loaded.difference_update(move.keys)
        books = self._books.get(move.sequence)
        if books is not None:
            books.moves.remove(move)

    def forget(self, sequence: Sequence) -> None:
        """A request has ended; its stores may go on."""
        books = self._books.pop(sequence, None)
        if books is not None:
            self._outlived.update(dict.fromkeys(books.moves))
            if self.offload.by_request:
                self.tier.touch([key for key in books.keys if key in books.met])

    def _move(self, sequence: Sequence, keys: list[int], count: int, *, is_store: bool) -> Move:
        offload = self.offload
        move = Move(sequence, keys, count * offload.block_bytes, count * offload.block_pieces, is_store=is_store)
        self._books[sequence].moves.append(move)
        self.num_under_way += 1
        return move

    def _keys_of(self, sequence: Sequence, books: _Books, num_tokens: int) -> list[int]:
        """Numbers of a request's full blocks up to so many tokens, or of more if they were asked for before."""
        keys, factor = books.keys, self.offload.factor
        start, end = len(keys) * factor, num_tokens // self._size * factor
        if start < end:
            for edge, first, stop in (*sequence.path, (sequence.own_edge, sequence.shared, end)):
                low, high = max(start, first), min(end, stop)
                # The last block of each group of blocks stands for it, as it stands for all before it.
                low += (factor - 1 - low) % factor
                keys += [(edge << PLACES) + place for place in range(low, high, factor)]
        return keys


# A waiting request whose beginning is there holds blocks for it and waits for the copy; others may pass it meanwhile,
# and
# it is looked at first in every later step. Who has to wait for a copy of somebody else is passed in the same way.
# Rules
# as in vLLM 0.25 and 0.32 (v1/core/sched/scheduler.py).


class Outcome(Enum):
    """What became of a request that was looked at."""

    PASSED = 0
    NO_ROOM = 1


class OffloadingScheduler(Scheduler):
    """Decides what each step computes and copies."""

    def __init__(
        self,
        policy: MixingPolicy,
        cache: KvCache,
        steps_under_way: int,
        offload: Offload,
        max_model_len: int | None = None,
        *,
        decode_together: bool = True,
        in_order: bool = False,
    ) -> None:
        super().__init__(policy, cache, steps_under_way, max_model_len, decode_together=decode_together)
        self.moves = Moves(offload, cache.shape, in_order=in_order)
        self._loading: dict[Sequence, bool] = {}
        """Waiting requests that hold blocks, and whether all of them are there."""
        self._num_passed = 0
        """Requests at the head of the queue that others may pass."""
        self._unstored: dict[Sequence, None] = {}
        """Running requests for whose blocks there was no room in the tier."""
        self._leaving: dict[Sequence, Plan] = {}
        """Who gave way, and keeps blocks until the last step has ended that was under way then."""
        self._prompts_only, self._unknown = offload.prompts_only, steps_under_way - 1
        self._holders_first, self._spares, self._stores_ends = (
            offload.holders_first,
            offload.spares_under_way,
            offload.stores_ends,
        )
        self._passed_apart = isinstance(policy, FirstCome) and policy.passed_apart
        self._ended: list[Sequence] = []
        """Who has ended since the last step was planned, where the tier hears of that with the next one."""
        self.loaded: dict[int, int] = {}
        """Of each request that found some of its tokens in the tier when it first started, how many."""

    @property
    def has_moves(self) -> bool:
        """Whether copies are under way or about to be handed over."""
        return self.moves.num_under_way > 0

    @property
    def has_ended(self) -> bool:
        """Whether requests have ended of which the tier hears with the next step."""
        return bool(self._ended)

    def plan(self) -> Plan | None:
        """Plan the next step, and what is copied with it."""
        plan = super().plan()
        if plan is not None:
            if plan.decodes:
                self._store_of_cohort()
            for sequence, new_tokens, computed in zip(plan.sequences, plan.new_tokens, plan.computed, strict=True):
                known = sequence.num_input + sequence.num_produced
                reached = min(computed + new_tokens, known)
                self._store(sequence, min(reached, sequence.num_input) if self._prompts_only else reached)
        if self._ended:
            self._store_of_ended()
        return plan

    def _store_of_ended(self) -> None:
        """What was not stored yet of those who have ended: nothing was computed on their last tokens."""
        for sequence in self._ended:
            reached = sequence.num_input + max(sequence.num_output - 1, 0)
            self.moves.begin_store(sequence, sequence.num_input if self._prompts_only else reached)
        for sequence in self._ended:
            self.moves.forget(sequence)
        self._ended.clear()

    def _store_of_cohort(self) -> None:
        """Blocks of those who decode: what there was no room for before, and answers."""
        if self._prompts_only:
            for sequence in [each for each in self._unstored if each.joined >= 0]:
                self._store(sequence, sequence.num_input)
            return
        for member in self.cohort.members:
            computed = member.num_computed + self.cohort.steps - member.joined
            self._store(member, computed + 1 - self._unknown)

    def _store(self, sequence: Sequence, num_tokens: int) -> None:
        if self.moves.begin_store(sequence, num_tokens):
            self._unstored.pop(sequence, None)
        else:
            self._unstored[sequence] = None

    def end_moves(self, moves: list[Move]) -> None:
        """Copies have ended."""
        for move in moves:
            self.moves.end(move)
            if not move.is_store:
                self._loading[move.sequence] = True
        self._is_blocked = False

    def complete(self, plan: Plan) -> list[Sequence]:
        """Take in the tokens that a finished step yields; who gave way while it ran lets go now."""
        if self._leaving:
            for sequence in [each for each, last in self._leaving.items() if last is plan]:
                del self._leaving[sequence]
                self.policy.give_up(self.cache, sequence)
        return super().complete(plan)

    def _end(self, done: list[Sequence]) -> None:
        if self._stores_ends:
            self._ended += done
        for sequence in done:
            if not self._stores_ends:
                self.moves.forget(sequence)
            self._unstored.pop(sequence, None)
            if sequence not in self.running and sequence in self.waiting:  # it gave way in its last step
                self._num_passed -= self.waiting.index(sequence) < self._num_passed
        super()._end(done)

    def _preempt(self, plan: Plan) -> Sequence:
        """Somebody gives way, and may come back behind those who were passed."""
        victim = super()._preempt(plan)
        if self._passed_apart:
            self.waiting.popleft()
            self.waiting.insert(self._num_passed, victim)
        return victim

    def _plan_cohort(self, plan: Plan) -> bool:
        """Where blocks run out it matters who is where, if not all may give way."""
        cohort, cache = self.cohort, self.cache
        needed = cohort.blocks[(cohort.steps + 1) % cohort.period]
        if self._spares and not self._is_windowed and cache.num_held + needed > cache.num_blocks:
            return False
        return super()._plan_cohort(plan)

    def _may_preempt(self) -> bool:
        return not (self._spares and self._is_under_way(self.policy.victim(reversed(self.running))))

    def _is_under_way(self, sequence: Sequence) -> bool:
        """Whether a step under way computes it, as one that is planned by itself."""
        return any(sequence in group for step in self._under_way for group in (step.sequences, step.left, step.ending))

    def _give_up(self, victim: Sequence) -> None:
        """Blocks that a step under way uses are free when that has ended."""
        if self._is_under_way(victim):
            self._leaving[victim] = self._under_way[-1]
        else:
            super()._give_up(victim)
        self.moves.flush(victim)
        self._unstored.pop(victim, None)

    def _plan_waiting(self, plan: Plan) -> None:
        """Those who wait, in order, until one does not fit; who waits for a copy is passed."""
        if self._holders_first and not self._plan_holders(plan):
            return
        position, waiting, most, is_full = 0, self.waiting, self.policy.max_num_seqs, False
        while position < len(waiting) and self._budget > 0 and len(self.running) < most:
            sequence = waiting[position]
            if (self._settles and sequence.num_under_way) or sequence in self._leaving:
                position += 1
                continue
            answer = self._look_at(sequence)
            if answer is Outcome.PASSED:
                position += 1
                continue
            if answer is Outcome.NO_ROOM:
                is_full = True
                break
            self._begin(plan, position, sequence, answer)
        self._num_passed = max(position, self._num_passed)
        self._is_blocked = is_full and not self.has_moves and not self.moves.tier.counts_lookups

    def _plan_holders(self, plan: Plan) -> bool:
        """Those whose blocks have arrived; False if there is no room for one of them."""
        for sequence in [each for each, has_arrived in self._loading.items() if has_arrived]:
            if self._budget <= 0 or len(self.running) >= self.policy.max_num_seqs:
                return False
            answer = self._look_at(sequence)
            if answer is Outcome.NO_ROOM:
                self._is_blocked = not self.has_moves
                return False
            assert isinstance(answer, int)
            self._begin(plan, self.waiting.index(sequence), sequence, answer)
        return True

    def _begin(self, plan: Plan, position: int, sequence: Sequence, new_tokens: int) -> None:
        """A request leaves the queue for this step."""
        del self.waiting[position]
        self._num_passed -= position < self._num_passed
        self._num_started += 1
        sequence.place = self._num_started
        self.running[sequence] = None
        self._apart.append(sequence)
        plan.started.append(sequence)
        self._put(plan, sequence, new_tokens)

    def _look_at(self, sequence: Sequence) -> int | Outcome:
        """Start a request or begin to load what the tier has of it; returns the tokens that it computes."""
        known = sequence.num_input + sequence.num_produced
        has_arrived = self._loading.get(sequence)
        if has_arrived is not None:
            return self._go_on(sequence, known) if has_arrived else Outcome.PASSED
        cache, promised = self.cache, self.policy.promised_tokens(sequence, known)
        local = cache.longest_prefix(sequence, known)
        found = self.moves.look_up(sequence, local, known)
        if found is None:
            return Outcome.PASSED
        if found:
            if not self._admit(sequence, local, found, promised, self._reserved()):
                return Outcome.NO_ROOM
            self.moves.begin_load(sequence, local, found)
            self._loading[sequence] = False
            sequence.num_computed = local + found
            self._note(sequence, known, local, found)
            return Outcome.PASSED
        new_tokens = self.policy.first_chunk(known - local, self._budget, alone=self._is_alone())
        if not new_tokens or not self._admit(sequence, local, new_tokens, promised):
            return Outcome.NO_ROOM
        sequence.num_computed = local
        self._note(sequence, known, local, 0)
        return new_tokens

    def _note(self, sequence: Sequence, known: int, local: int, found: int) -> None:
        """What a request that starts has found, and where."""
        if local:
            self.moves.reuse(sequence, local)
        self.moves.num_queried += known - local
        self.moves.num_hit += found
        if not sequence.num_preemptions:
            sequence.num_cached = local + found
            if found:
                self.loaded[sequence.index] = found

    def _go_on(self, sequence: Sequence, known: int) -> int | Outcome:
        """A request whose blocks have arrived: others may find them, and the rest of it is computed."""
        cache, computed = self.cache, sequence.num_computed
        if sequence.named * self._block_size < computed:
            cache.name(sequence, computed)
        if computed == known:
            computed = sequence.num_computed = known - 1
        new_tokens = self.policy.first_chunk(known - computed, self._budget, alone=self._is_alone())
        missing = cache.shape.blocks_for(self.policy.promised_tokens(sequence, known)) - sequence.length
        if not new_tokens or missing * self._num_groups > cache.num_free:
            return Outcome.NO_ROOM
        if not cache.grow(sequence, computed + new_tokens):
            return Outcome.NO_ROOM
        del self._loading[sequence]
        return new_tokens

    def _reserved(self) -> int:
        """Blocks that prompts which are under way, and requests that are being loaded, still need."""
        started = [each for each in self._apart if each.num_computed < each.num_input + each.num_produced]
        size = self._block_size
        missing = [
            -(-(each.num_input + each.num_produced) // size) - each.length for each in (*started, *self._loading)
        ]
        return sum(missing) * self._num_groups
