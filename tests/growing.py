"""A training in a process of its own, which tests kill. It takes a step when it is told to, and says so then."""

import contextlib
import multiprocessing
import warnings

import torch

from tangentlens import Lens
from tiny import tiny_batch, tiny_model


def train(path, first, told):
    """Train from the step `first` on, as after a checkpoint, one step for each word that comes."""
    torch.set_num_threads(1)
    # Steps that a continued training overtakes are told, once.
    warnings.simplefilter("ignore")
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Lens(model, "resid.1", rank=4, every=1, step=first, run=path) as lens:
        told.send("ready")
        while told.recv():
            loss = model(**tiny_batch(lens.current)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            lens.step(loss)
            told.send(lens.current - 1)


class Training:
    """A training that has begun."""

    def __init__(self, process, pipe):
        self.process, self._pipe = process, pipe

    def step(self):
        """Take a step, and return its number when it is written."""
        self._pipe.send(True)
        return self._pipe.recv()

    def kill(self):
        """End it as a power failure does."""
        self.process.kill()
        self.process.join()


@contextlib.contextmanager
def training(path, first=0):
    """Yield a training that writes to `path`; it is killed in the end."""
    context = multiprocessing.get_context("forkserver")
    # The server that processes are forked from finds installed modules only, and no file of the tests.
    context.set_forkserver_preload(["tangentlens.studies", "transformers.models.llama.modeling_llama"])
    ours, theirs = context.Pipe()
    process = context.Process(target=train, args=(str(path), first, theirs))
    process.start()
    theirs.close()
    begun = Training(process, ours)
    try:
        assert ours.recv() == "ready"
        yield begun
    finally:
        begun.kill()
        ours.close()
