<?php
// Arrays, strings and objects of about the given mebibytes, with collections of cycles and forked children that
// change what they share. Prints digests.
ini_set('memory_limit', '-1');

final class Entry {
    public ?Entry $other = null;
    public function __construct(public int $number, public string $text, public array $list) {}
}

function build(int $n): Entry {
    return new Entry($n, str_repeat(md5("text $n"), 1 + $n % 4), [$n, $n * 2, "word " . crc32("$n")]);
}

function digest(array $table): string {
    $hash = hash_init('sha256');
    foreach ($table as $key => $entry) hash_update($hash, "$key $entry->number $entry->text " . implode(' ', $entry->list));
    return substr(hash_final($hash), 0, 16);
}

$count = (int) $argv[1] * 1500;
$table = [];
for ($n = 0; $n < $count; $n++) $table["key $n"] = build($n);
echo "built ", count($table), " ", digest($table), "\n";
for ($round = 0; $round < 3; $round++) {
    for ($n = $round; $n < $count; $n += 3) {
        // A cycle of what is thrown away: only the collector finds it.
        $old = $table["key $n"];
        $new = build($n + $count * ($round + 1));
        $old->other = $old;
        $table["key $n"] = $new;
    }
    unset($old, $new);
    gc_collect_cycles();
    echo "round $round ", digest($table), "\n";
}
for ($child = 0; $child < 2; $child++) {
    [$here, $there] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    // Without this, PHP stops reading after a minute and returns what it has.
    stream_set_timeout($here, 3600);
    $pid = pcntl_fork();
    if ($pid === 0) {
        fclose($here);
        foreach ($table as $key => $entry) if ($entry->number % 2 === $child) $entry->text .= 'child';
        fwrite($there, digest($table));
        fclose($there);
        exit(0);
    }
    fclose($there);
    // Meanwhile the parent changes what the child reads.
    foreach ($table as $entry) $entry->number++;
    $said = stream_get_contents($here);
    pcntl_waitpid($pid, $status);
    if (!pcntl_wifexited($status) || pcntl_wexitstatus($status) !== 0) { echo "status $status\n"; exit(3); }
    echo "child $said\n";
}
echo shell_exec('echo a shell');
$numbers = [];
foreach ($table as $key => $entry) $numbers[$key] = crc32($entry->text);
asort($numbers);
echo "numbers ", md5(implode(' ', array_keys($numbers))), "\n";
unset($numbers);
krsort($table);
echo "sorted ", digest($table), "\n";
$string = serialize($table);
echo "serialized ", strlen($string), " ", md5($string), "\n";
unset($table);
$table = unserialize($string);
echo "parent ", count($table), " ", digest($table), "\n";
