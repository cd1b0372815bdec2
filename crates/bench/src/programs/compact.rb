# Strings, arrays and hashes that compaction moves, with holes between the rounds. Prints a digest.
require 'digest'

COUNT = 170_000
Entry = Struct.new(:key, :words, :text)

def entry(number)
  Entry.new("key #{number}", [number * 7919, number.to_s * 3, (number + 1).to_s(16)], format('%064x', number * 104_729) * (1 + number % 5))
end

table = {}
COUNT.times { |number| table["key #{number}"] = entry(number) }
digest = Digest::SHA256.new
3.times do |round|
  (round...COUNT).step(3) { |number| table["key #{number}"] = entry(number + COUNT * (round + 1)) }
  GC.compact
  table.each { |key, value| digest << key << value.words.join(' ') << value.text }
end
puts digest.hexdigest
