# Hashes, arrays and long strings of about the given mebibytes, sorted and searched, with children that fork
# off and programs that backticks start meanwhile. Prints digests.
use strict;
use warnings;
use Digest::MD5;
use POSIX ();

my $mebibytes = shift;
$| = 1;
my $count = $mebibytes * 1700;
my $state = 12345;
sub random { $state = ($state * 1103515245 + 12345) & 0x7fffffff; return $state; }

sub digest {
    my ($table) = @_;
    my $md5 = Digest::MD5->new;
    for my $i (0 .. $count - 1) {
        my $entry = $table->{"key $i"};
        $md5->add("$entry->{number} $entry->{text} @{$entry->{list}}\n");
    }
    return $md5->hexdigest;
}

my %table;
for my $i (0 .. $count - 1) {
    $table{"key $i"} = { number => random(), text => sprintf("%08x", random()) x 8, list => [$i, $i * 2, random()] };
}
print "built ", scalar(keys %table), " ", digest(\%table), "\n";

for my $round (1 .. 8) {
    my $said = `echo round $round`;
    print $said;
    $table{"key " . random() % $count}{text} .= $said for 1 .. 200;
}

my @numbers = map { $table{"key $_"}{number} } 0 .. $count - 1;
my @order = map { "key $_" } sort { $numbers[$a] <=> $numbers[$b] || $a <=> $b } 0 .. $count - 1;
my $md5 = Digest::MD5->new;
$md5->add($_) for @order;
print "sorted ", $md5->hexdigest, "\n";

for my $child (1 .. 2) {
    pipe(my $read, my $write) or die;
    my $pid = fork();
    die "fork: $!" unless defined $pid;
    if ($pid == 0) {
        close $read;
        $table{"key $_"}{text} =~ tr/0-7/a-h/ for 0 .. $count - 1;
        print $write digest(\%table), "\n";
        close $write;
        # Not by exit, which frees each value, in the order of the hash.
        POSIX::_exit(0);
    }
    close $write;
    # The parent changes what the child reads.
    $table{"key $_"}{number} += $child for 0 .. $count - 1;
    print "child $child ", scalar(<$read>);
    waitpid($pid, 0);
    die "status $?" if $?;
}
my $string = join ',', map { $_->{number} } map { $table{"key $_"} } 0 .. $count - 1;
print "string ", length($string), " ", Digest::MD5::md5_hex($string), "\n";
my $matches = () = $string =~ /(\d)\1\1/g;
print "matches $matches\n";
print "parent ", digest(\%table), "\n";
