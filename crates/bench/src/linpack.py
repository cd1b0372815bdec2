"""LU factorisation by SciPy's LAPACK of a matrix that fills 0.9 of BYTES (seed 000's linpack).

Prints one JSON object. Nothing here knows of swap: the matrix is an ordinary NumPy array in
Fortran order, factorised in place. No second copy is kept; the original can be drawn again
from the seed, a few columns at a time, and for the residual it is.

Arguments: BYTES SEED THREADS.
"""

import json
import os
import resource
import sys
import time

if __name__ == "__main__":
    # The BLAS looks when it is loaded.
    os.environ["OPENBLAS_NUM_THREADS"] = sys.argv[3]

import numpy
import scipy
from scipy.linalg import blas, lapack

PAGE = 4096
COLUMNS = 64  # drawn at once
VECTORS = 4  # random vectors that the residual is looked at through


def columns(seed, n):
    """The matrix, some columns at a time: the first one's number, and the columns as rows."""
    for first in range(0, n, COLUMNS):
        count = min(COLUMNS, n - first)
        draw = numpy.random.default_rng([seed, first])
        yield first, draw.random((count, n)) - 0.5


def faults():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def residual(factors, pivots, seed, n):
    """|P L U x - A x| / (|A| |x| n eps), the largest of some random x, norms being the largest
    absolute row sum and the largest element: below about 16 where the factors are right."""
    x = numpy.asfortranarray(numpy.random.default_rng([seed, n]).random((n, VECTORS)) - 0.5)
    product = blas.dtrmm(1.0, factors, x)
    product = blas.dtrmm(1.0, factors, product, lower=1, diag=1, overwrite_b=1)
    for row in range(n - 1, -1, -1):
        other = pivots[row]
        if other != row:
            product[[row, other]] = product[[other, row]]
    sums = numpy.zeros(n)
    for first, part in columns(seed, n):
        product -= part.T @ x[first : first + len(part)]
        sums += numpy.abs(part).sum(axis=0)
    scale = sums.max() * numpy.abs(x).max() * n * numpy.finfo(float).eps
    return float(numpy.abs(product).max() / scale)


def main(size, seed):
    n = int((0.9 * size / 8) ** 0.5)
    started = time.perf_counter()
    matrix = numpy.empty((n, n), order="F")
    for first, part in columns(seed, n):
        matrix[:, first : first + len(part)] = part.T
    filled = time.perf_counter()

    before = faults()
    start = time.perf_counter()
    factors, pivots, info = lapack.dgetrf(matrix, overwrite_a=1)
    end = time.perf_counter()
    after = faults()
    if info != 0 or not numpy.shares_memory(factors, matrix):
        sys.exit(f"dgetrf says {info}, in place: {numpy.shares_memory(factors, matrix)}")

    found = residual(factors, pivots, seed, n)
    checked = time.perf_counter()
    if not found < 16:
        sys.exit(f"wrong factors: the residual is {found}, at most 16 is right")
    seconds = end - start
    print(
        json.dumps(
            {
                "n": n,
                "matrix_bytes": matrix.nbytes,
                "fill_ns": (filled - started) * 1e9,
                "factor_ns": seconds * 1e9,
                "check_ns": (checked - end) * 1e9,
                "gflops": 2 / 3 * n**3 / seconds / 1e9,
                "faults_per_page": (after - before) / (matrix.nbytes / PAGE),
                "residual": found,
                "numpy": numpy.__version__,
                "scipy": scipy.__version__,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
