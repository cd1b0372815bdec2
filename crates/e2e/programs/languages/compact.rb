# Strings, arrays and hashes of about the given mebibytes, moved by compaction over and over, and a forked
# child that compacts what it shares with its parent. Prints digests.
require 'digest'

MIX = 0x9e3779b97f4a7c15
def mix(x)
  x = (x * MIX) & 0xffffffffffffffff
  x ^= x >> 31
  (x * 0xbf58476d1ce4e5b9) & 0xffffffffffffffff
end

Entry = Struct.new(:key, :words, :text)

def build(number)
  Entry.new("key #{number}", [mix(number), number.to_s * 3, mix(number + 1).to_s(16)], format('%064x', mix(number)) * (1 + number % 7))
end

def digest(table)
  state = Digest::SHA256.new
  table.each { |key, entry| state << key << entry.key << entry.words.join(' ') << entry.text }
  state.hexdigest
end

mebibytes = Integer(ARGV[0])
table = {}
count = mebibytes * 1400
count.times { |number| table["key #{number}"] = build(number) }
$stdout.sync = true
puts "built #{table.size} #{digest(table)}"
3.times do |round|
  # A third of all goes, others come: holes that compaction closes.
  (round...count).step(3) { |number| table["key #{number}"] = build(number + count * (round + 1)) }
  moved = GC.compact
  GC.start
  raise 'nothing was moved' unless moved[:moved].values.sum.positive?
  puts "round #{round} #{digest(table)}"
end
child = fork do
  GC.compact
  (0...count).step(5) { |number| table["key #{number}"].text << 'child' }
  puts "child #{digest(table)}"
  $stdout.flush
  exit!(0)
end
Process.wait(child)
raise 'the child failed' unless $?.success?
puts `echo "a shell's"`
GC.compact
(0...count).each { |number| raise "wrong: #{number}" unless table["key #{number}"].key.start_with?('key') }
puts "parent #{digest(table)}"
