# A hash of arrays: built, inverted, sorted by value. Prints a digest.
use strict;
use warnings;
use Digest::SHA;

my (%table, %inverse);
my $count = 350_000;
for my $i (0 .. $count - 1) {
    $table{"key $i"} = [$i, ($i * 7919) % 1_000_003, "value " . ($i * 31)];
}
for my $key (keys %table) {
    push @{ $inverse{ $table{$key}[1] % 5003 } }, $key;
}
my $digest = Digest::SHA->new(256);
for my $number (sort { $a <=> $b } keys %inverse) {
    $digest->add(join ",", sort @{ $inverse{$number} });
}
my @order = sort { $table{$a}[1] <=> $table{$b}[1] } keys %table;
$digest->add($table{$_}[2]) for @order;
print $digest->hexdigest, "\n";
