-- Strings and tables in tables: built, counted, sorted, joined. Prints a sum.
local count, byname, groups = 500000, {}, {}
for i = 0, count - 1 do
  local record = { id = i, value = (i * 7919) % 1000003, name = "name " .. i * 31 }
  byname["key " .. i] = record
  local group = groups[record.value % 5003] or {}
  group[#group + 1] = record
  groups[record.value % 5003] = group
end
local sum = 0
for number = 0, 5002 do
  local group = groups[number] or {}
  table.sort(group, function(a, b) return a.value < b.value end)
  for place, record in ipairs(group) do
    sum = (sum * 31 + record.id * place + #byname["key " .. record.id].name) % 1000000007
  end
end
print(sum)
