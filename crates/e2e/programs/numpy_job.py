"""NumPy on arrays of MEBIBYTES in all: a matrix product, a sort, an FFT. Prints digests."""

import hashlib
import sys

import numpy

mebibytes = int(sys.argv[1])


def digest(name, array):
    print(name, array.shape, hashlib.sha256(array.tobytes() if array.nbytes < 1 << 20 else array.data).hexdigest())


random = numpy.random.default_rng(2)
# A third of the memory for each of: two factors and a product; an array and its sorted self;
# a signal and its spectrum.
side = int((mebibytes * 2**20 / 3 / 3 / 8) ** 0.5)
left = random.random((side, side))
right = random.random((side, side))
product = left @ right
# Rounded: the order of additions may differ with the threads' timing.
digest("product", numpy.round(product, 3))

values = random.random(mebibytes * 2**20 // 3 // 2 // 8)
ordered = numpy.sort(values)
digest("sorted", ordered)
print("in order", bool((ordered[1:] >= ordered[:-1]).all()))

signal = random.random(mebibytes * 2**20 // 3 // 3 // 8)
spectrum = numpy.fft.rfft(signal)
back = numpy.fft.irfft(spectrum, len(signal))
digest("spectrum", spectrum)
print("back again", bool(numpy.allclose(signal, back)))

# All of it once more: what went out in the meantime must have come back as it was.
digest("left", left)
digest("right", right)
digest("values", values)
