// One instance of Node for each number from FIRST to LAST, which are defined before, as is the name of PART.
#include <array>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

template <int N>
struct Node {
    std::map<std::string, std::vector<std::array<long, N + 1>>> by_name;
    std::unordered_map<long, std::tuple<std::string, std::array<int, N + 2>>> by_number;
    std::variant<std::array<char, N + 1>, std::string, long> last;

    long work(long seed)
    {
        for (long i = 0; i < 50; i++) {
            std::array<long, N + 1> row{};
            row[i % (N + 1)] = seed % 1000 * 31 + i;
            by_name[std::to_string(row[0] % 17)].push_back(row);
            by_number[i * N] = std::tuple<std::string, std::array<int, N + 2>>(std::to_string(i), {});
            if (i % 3 == 0)
                last = std::to_string(seed % 1000);
            else
                last = seed % 1000;
        }
        std::function<long(long, long)> mixed = [](long sum, long value) { return (sum * 7 + value + N) % 1000003; };
        long sum = seed % 1000;
        for (auto &[name, rows] : by_name)
            for (auto &row : rows)
                for (long value : row)
                    sum = mixed(sum, value + long(name.size()));
        for (long i = 0; i < 50; i++)
            sum += long(std::get<0>(by_number[i * N]).size());
        return std::visit([&](auto &value) { return sum + long(sizeof value); }, last);
    }
};

template <int N>
long all(long seed)
{
    if constexpr (N == FIRST)
        return seed;
    else
        return all<N - 1>(Node<N>().work(seed));
}

long PART(long seed)
{
    return all<LAST>(seed);
}
