// Templates by the hundred: a compiler's memory is a graph of small nodes that every pass walks. `build.py` compiles it with
// other numbers.
#ifndef SEED
#define SEED 9
#define DEPTH 80
#define KINDS 12
#endif

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
