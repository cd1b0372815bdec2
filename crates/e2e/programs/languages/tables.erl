%% ETS tables, lists, maps and binaries of about the given mebibytes in several processes, with garbage
%% collections of each. Prints check sums.
-module(tables).
-export([main/1]).

value(N) -> {N, integer_to_binary(erlang:phash2({N, value})), [N, N + 1, N * 2], #{name => N, half => N div 2}}.

sum(Table) -> ets:foldl(fun(Entry, Total) -> (Total + erlang:phash2(Entry)) band 16#ffffffffffff end, 0, Table).

worker(Parent, W, Count) ->
    List = [value(N) || N <- lists:seq(W, Count, 4)],
    garbage_collect(),
    Binary = << <<(erlang:phash2({W, N})):32>> || N <- lists:seq(1, Count) >>,
    Sorted = lists:sort(fun(A, B) -> element(2, A) =< element(2, B) end, List),
    garbage_collect(),
    Parent ! {W, length(Sorted), erlang:phash2(Sorted), erlang:crc32(Binary), erlang:phash2(List)}.

main([Argument]) ->
    Mebibytes = list_to_integer(Argument),
    Count = Mebibytes * 1100,
    Table = ets:new(table, [set, public, {write_concurrency, true}]),
    [ets:insert(Table, value(N)) || N <- lists:seq(1, Count)],
    Ordered = ets:new(ordered, [ordered_set, public]),
    [ets:insert(Ordered, {erlang:phash2(N, 1 bsl 32), <<N:512>>}) || N <- lists:seq(1, Count)],
    io:format("built ~p ~p~n", [ets:info(Table, size), sum(Table)]),
    Parent = self(),
    [spawn_link(fun() -> worker(Parent, W, Count) end) || W <- [1, 2, 3, 4]],
    [ets:insert(Table, value(N)) || N <- lists:seq(1, Count), N rem 3 =:= 0],
    [ets:insert(Table, {N, again, lists:seq(1, 10)}) || N <- lists:seq(1, Count), N rem 5 =:= 0],
    [receive {W, A, B, C, D} -> io:format("worker ~p ~p ~p ~p ~p~n", [W, A, B, C, D]) end || W <- [1, 2, 3, 4]],
    io:format("child ~s", [os:cmd("echo hello")]),
    io:format("changed ~p ~p~n", [ets:info(Table, size), sum(Table)]),
    [true = ets:member(Table, N) || N <- lists:seq(1, Count)],
    io:format("ordered ~p ~p~n", [sum(Ordered), ets:first(Ordered)]),
    garbage_collect(),
    io:format("last ~p~n", [sum(Table)]),
    halt(0).
