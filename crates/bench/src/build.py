"""`make -jJOBS` of eight C++ files whose compilers need 320 to 360 MiB each (measured with GCC 12).

Prints one JSON object. Nothing here knows of swap: g++ and make are those of the system. The sources are written below
DIRECTORY, into a folder that is removed at the end. The object files of all turns must be equal: `digest` is of them.

Arguments: DIRECTORY JOBS.
"""

import hashlib
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

FILES = 8
SOURCE = r"""
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <ranges>
#include <regex>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

template <int N> struct Table {
    std::vector<Table<(N > 0 ? N - 1 : 0)> *> parts;
    std::map<int, std::string> names;
    int add(int x) {
        names[x] = std::to_string(x + N);
        return static_cast<int>(names.size()) + N;
    }
};

template <int N, int K> struct Chain {
    static int run(int x) {
        std::tuple<int, long, std::string, Table<K>> all{x, N, "a", {}};
        auto add = [&](auto &&value) { return std::get<3>(all).add(value) + N; };
        std::function<int(int)> call = add;
        return call(x) + Chain<N - 1, K>::run(x + 1);
    }
};
template <int K> struct Chain<0, K> {
    static int run(int x) { return x; }
};

template <int... I> int visit_all(std::integer_sequence<int, I...>, int x) {
    using Any = std::variant<std::integral_constant<int, I>...>;
    auto make = [&](int i) {
        Any any;
        ((i == I ? (any = std::integral_constant<int, I>{}, 0) : 0), ...);
        return any;
    };
    Any a = make(x % sizeof...(I)), b = make(x * 7 % sizeof...(I));
    return std::visit([](auto p, auto q) { return p.value * 3 + q.value; }, a, b);
}

int main(int argc, char **argv) {
    int sum = Chain<DEPTH, SEED>::run(argc);
    sum += visit_all(std::make_integer_sequence<int, KINDS>{}, argc);
    std::regex pattern("a(b|c)*d+[0-9]{2,4}");
    std::string name(argv[0]);
    std::smatch match;
    sum += std::regex_search(name, match, pattern);
    auto even = [](int i) { return i % 2 == 0; };
    auto square = [](int i) { return i * i; };
    for (int i : std::views::iota(1, argc * 100) | std::views::filter(even) | std::views::transform(square))
        sum += i;
    std::cout << sum << "\n";
}
"""
RULES = """
all: {objects}
%.o: %.cc
\tg++ -std=c++20 -O2 -c -o $@ $<
"""


def main(directory, jobs):
    with tempfile.TemporaryDirectory(prefix="foreswap-bench-build-", dir=directory) as folder:
        folder = pathlib.Path(folder)
        for n in range(FILES):
            numbers = {"SEED": n + 2, "DEPTH": 60 + 2 * n, "KINDS": 10 + n % 3}
            defines = "".join(f"#define {name} {value}\n" for name, value in numbers.items())
            (folder / f"f{n}.cc").write_text(defines + SOURCE)
        objects = [f"f{n}.o" for n in range(FILES)]
        (folder / "Makefile").write_text(RULES.format(objects=" ".join(objects)))
        start = time.monotonic_ns()
        subprocess.run(["make", "-s", f"-j{jobs}", "-C", folder], check=True, stdout=subprocess.DEVNULL)
        elapsed = time.monotonic_ns() - start
        digest = hashlib.sha256()
        for name in objects:
            digest.update((folder / name).read_bytes())
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"build_ns": elapsed, "largest_bytes": largest, "digest": digest.hexdigest()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
