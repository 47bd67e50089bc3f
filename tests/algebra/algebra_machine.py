"""An independent judge of programs: what must run, and ranks that run it on named values."""

from collections import Counter, defaultdict

from algebra_cases import compute_of

from hyperparallel.algebra import Action
from hyperparallel.algebra.program import Piece


def runs_correctly(programs, plan, rendezvous=False):
    """Judge programs by running them on tokens: right work, right values, nothing stuck, nothing left over."""
    work = Counter(action for program in compute_of(programs) for action in program)
    return whole(work) == work_of(plan) and _Machine(programs, plan).run(rendezvous)


def whole(work):
    """Count I and W of one (stage, micro-batch) as one B, if they are there once each and no B is."""
    joined = Counter({action: count for action, count in work.items() if action.kind not in "IW"})
    for action, count in work.items():
        other = action._replace(kind="W" if action.kind == "I" else "I")
        if action.kind in "IW":
            joined[action._replace(kind="B" if count == work[other] == 1 else "unpaired")] += action.kind == "I"
            joined[action._replace(kind="unpaired")] += count != work[other]
    return +joined


def split_of(plan):
    """Return in how many pieces the first region encodes a micro-batch."""
    return dict(plan.schedule.regions[0].options).get("split", 1)


def units_of(plan):
    """List micro-batches, and where the first region encodes in pieces these too."""
    mbs = range(plan.micro_batches)
    return [*mbs, *(Piece(mb, piece) for mb in mbs for piece in range(split_of(plan)) if split_of(plan) > 1)]


def path_of(plan, unit):
    """List the stages of a micro-batch: a Sharded region's in the order of their layers, the owner's of a copy.

    Of a piece: its encode and the stage after it; of a micro-batch in pieces: without the encodes.
    """
    path = []
    for index, region in enumerate(plan.regions):
        if region.owner is None:
            ranks = sorted(range(plan.ranks), key=region.slabs.__getitem__)
        elif index == 0 and split_of(plan) > 1:
            ranks = [region.owner[unit.mb][unit.index]] if isinstance(unit, Piece) else []
        else:
            ranks = [region.owner[unit]]
        path += [index * plan.ranks + rank for rank in ranks]
    return path[:2] if isinstance(unit, Piece) else path


def nodes_of(plan):
    """List all (stage, micro-batch or piece) that run."""
    return [
        (stage, unit)
        for unit in units_of(plan)
        for stage in path_of(plan, unit)[: 1 if isinstance(unit, Piece) else None]
    ]


def slab_of(plan, stage):
    """Return the layers of a stage, from the cut alone."""
    return plan.regions[stage // plan.ranks].slabs[stage % plan.ranks]


def trains(plan, first, last):
    """Say whether one of these layers is trainable."""
    return any(layer.trainable for layer in plan.model.layers[first:last])


def work_of(plan):
    """Count every forward and whole backward that a plan must run, from its cut and trainable layers alone."""
    work = Counter()
    for stage, unit in nodes_of(plan):
        kinds = "FB" if trains(plan, 0, slab_of(plan, stage)[1]) else "F"
        work.update(Action(stage, kind, unit) for kind in kinds)
    return work


class _Machine:
    """Ranks that hold named values and exchange them over first-in-first-out channels."""

    def __init__(self, programs, plan):
        self.programs, self.ranks = programs, plan.ranks
        self.path = {unit: path_of(plan, unit) for unit in units_of(plan)}
        self.place = {unit: {stage: index for index, stage in enumerate(path)} for unit, path in self.path.items()}
        self.split = split_of(plan) if split_of(plan) > 1 else 0
        self.values = [set() for _ in programs]
        self.channels = defaultdict(list)
        self.at = [0] * len(programs)

    def run(self, rendezvous):
        while any(self.at[rank] < len(program) for rank, program in enumerate(self.programs)):
            verdicts = [self.step(rank, rendezvous) for rank in range(self.ranks)]
            if False in verdicts or all(verdict is None for verdict in verdicts):
                return False
        return not any(self.channels.values())

    def current(self, rank):
        return self.programs[rank][self.at[rank]] if self.at[rank] < len(self.programs[rank]) else None

    def step(self, rank, rendezvous):
        """Run one action: True when it ran, None when it waits, False when it is wrong."""
        action = self.current(rank)
        if action is None:
            return None
        stage, kind, mb = action
        if stage not in self.place[mb] or stage % self.ranks != rank:
            return False
        if kind in "FBIW" and isinstance(mb, Piece) and self.place[mb][stage] == 1:
            return False  # only its messages are the piece's
        path, place = self.path[mb], self.place[mb][stage]
        other = place + (1 if kind in ("F", "SEND_F", "RECV_B", "B", "I") else -1)
        peer = path[other] if 0 <= other < len(path) else None
        if kind in "FBIW":
            verdict = self.compute(rank, action, path, place, peer)
        elif peer is None or peer % self.ranks == rank:
            verdict = False
        elif kind.startswith("SEND"):
            verdict = self.send(rank, action, peer, rendezvous)
        else:
            # Under rendezvous its SEND moves both ends.
            verdict = None if rendezvous else self.receive(rank, action, peer)
        self.at[rank] += verdict is True
        return verdict

    def compute(self, rank, action, path, place, peer):
        stage, kind, mb = action
        result, needs = ("y", stage, mb), [] if place == 0 else [("x", stage, mb)]
        pieces = [Piece(mb, index) for index in range(self.split)] if place == 0 and not isinstance(mb, Piece) else []
        if kind == "F":
            needs += [("x", stage, piece) for piece in pieces]
        if kind in "BI":
            result, needs = ("dx", stage, mb), [("y", stage, mb)] + [("dy", stage, mb)] * (peer is not None)
        elif kind == "W":
            result, needs = ("dw", stage, mb), [("dx", stage, mb)]
        if not self.values[rank].issuperset(needs):
            return False
        self.values[rank].add(result)
        for piece in pieces if kind in "BI" else []:
            self.values[rank].add(("dx", stage, piece))
            if self.path[piece][0] % self.ranks == rank:
                self.values[rank].add(("dy", self.path[piece][0], piece))
        target = {"F": place + 1, "W": -1}.get(kind, place - 1)
        if 0 <= target < len(path) and path[target] % self.ranks == rank:
            self.values[rank].add(("x" if kind == "F" else "dy", path[target], mb))
        return True

    def send(self, rank, action, peer, rendezvous):
        stage, kind, mb = action
        token, end = ("x", "RECV_F") if kind == "SEND_F" else ("dy", "RECV_B")
        if ("y" if kind == "SEND_F" else "dx", stage, mb) not in self.values[rank]:
            return False
        if not rendezvous:
            self.channels[rank, peer % self.ranks].append((token, peer, mb))
            return True
        if self.current(peer % self.ranks) != (peer, end, mb):
            return None
        self.values[peer % self.ranks].add((token, peer, mb))
        self.at[peer % self.ranks] += 1
        return True

    def receive(self, rank, action, peer):
        channel = self.channels[peer % self.ranks, rank]
        if not channel:
            return None
        if channel[0] != ("x" if action.kind == "RECV_F" else "dy", action.stage, action.mb):
            return False
        self.values[rank].add(channel.pop(0))
        return True
