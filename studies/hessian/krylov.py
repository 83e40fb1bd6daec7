"""The steps of Lanczos' method, in memory or in a folder, from which a run that was stopped goes on."""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from simulate.runs.files import whole_file, write_whole


class Krylov:
    """Steps in memory.

    Attributes:
        alphas: diagonal of the tridiagonal matrix, a number a step.
        betas: beside the diagonal; the last is the norm of what is left behind the last step, 0 where nothing is.
        vectors: orthonormal, (n,) each, one more than there are steps unless the space is exhausted.
    """

    def __init__(self) -> None:
        self.alphas: list[float] = []
        self.betas: list[float] = []
        self.vectors: list[Tensor] = []

    @property
    def exhausted(self) -> bool:
        """Whether the space has no further vector."""
        return bool(self.betas) and self.betas[-1] == 0.0

    def begin(self, first: Tensor) -> None:
        """Take a unit vector as the first, or see that it is.

        Raises:
            ValueError: another one is.
        """
        if not self.vectors:
            self.vectors.append(first)
        elif not torch.equal(self.vectors[0].to(first.device), first):
            raise ValueError("kept steps must be of the same probe, and begin with another.")

    def append(self, alpha: float, beta: float, following: Tensor | None) -> None:
        """One more step, and the vector of the one after."""
        self.alphas.append(alpha)
        self.betas.append(beta)
        if following is not None:
            self.vectors.append(following)

    def forget(self) -> None:
        """All vectors but the two that the next step needs."""
        del self.vectors[:-2]

    def top_vector(self) -> Tensor:
        """The unit vector of the largest Ritz value, (n,)."""
        _, shares = eigh_tridiagonal(np.array(self.alphas), np.array(self.betas[:-1]))
        total = torch.zeros_like(self.vectors[0], dtype=torch.float64)
        for share, vector in zip(shares[:, -1], self.vectors, strict=False):
            total += float(share) * vector.double()
        return (total / torch.linalg.vector_norm(total)).to(self.vectors[0].dtype)


class KrylovFolder(Krylov):
    """Steps in a folder: a file for each vector, and the coefficients of the finished steps.

    Vectors of the CPU are mapped into memory; those of another device stay there as well.

    A vector is whole before the coefficients name it, so that a run that was killed goes on from the last finished
    step, on the same kind of machine with the same numbers.

    Args:
        folder: of this run alone.
        about: what the run is of; what JSON has.
        steps: for which there must be room.
        size: n.
        dtype: of vectors.

    Attributes:
        seconds: of every step, on the clock and of the processor.

    Raises:
        ValueError: the folder is of another run or damaged, or there is no room.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], *, steps: int, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.folder, self.about, self.seconds = folder, dict(about), list[list[float]]()
        folder.mkdir(parents=True, exist_ok=True)
        if self._file.is_file():
            self._load()
        needed = (steps + 1 - len(self.vectors)) * size * torch.empty((), dtype=dtype).element_size()
        if needed > (free := shutil.disk_usage(folder).free):
            raise ValueError(
                f"folder must have room, but {str(folder)!r} needs {needed / 1e6:.0f} MB for {steps} steps, and "
                f"{free / 1e6:.0f} MB are left."
            )
        self._since = _now()

    @property
    def _file(self) -> Path:
        return self.folder / "coefficients.json"

    def _load(self) -> None:
        try:
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            about, self.alphas, self.betas = kept["about"], kept["alphas"], kept["betas"]
            self.seconds = kept["seconds"]
            count = len(self.alphas) + (not self.exhausted)
            # Mapped for writing to memory alone: torch warns of arrays that are not writable.
            vectors = [np.load(self._vector(place), mmap_mode="c") for place in range(count)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"folder must hold whole steps, but {str(self.folder)!r} is damaged: {error}.") from error
        if about != self.about:
            raise ValueError(f"folder must be of the same run, but {str(self.folder)!r} is of {about}.")
        self.vectors = [torch.from_numpy(vector) for vector in vectors]

    def _vector(self, place: int) -> Path:
        return self.folder / f"vector-{place:04d}.npy"

    def _put(self, vector: Tensor) -> None:
        file = self._vector(len(self.vectors))
        with whole_file(file) as opened:
            np.save(opened, vector.cpu().numpy())
        self.vectors.append(torch.from_numpy(np.load(file, mmap_mode="c")) if vector.device.type == "cpu" else vector)

    def begin(self, first: Tensor) -> None:
        """Take a unit vector as the first and keep it, or see that it is.

        Raises:
            ValueError: another one is.
        """
        if self.vectors:
            super().begin(first)
        else:
            self._put(first)
        self._since = _now()

    def forget(self) -> None:
        """Nothing: all are kept."""

    def append(self, alpha: float, beta: float, following: Tensor | None) -> None:
        """One more step, kept."""
        super().append(alpha, beta, None)
        if following is not None:
            self._put(following)
        now = _now()
        self.seconds.append([end - start for start, end in zip(self._since, now, strict=True)])
        self._since = now
        kept = {"about": self.about, "alphas": self.alphas, "betas": self.betas, "seconds": self.seconds}
        write_whole(self._file, json.dumps(kept).encode())


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()
