(* Balanced trees, hash tables, strings and arrays of floats of about the given mebibytes, through minor, major
   and compacting collections. Prints check sums. *)
module M = Map.Make (Int)

let mix x =
  let x = x * 0x9e3779b97f4a7c1 in
  let x = x lxor (x lsr 29) in
  let x = x * 0x3f58476d1ce4e5b in
  x lxor (x lsr 32)

let value n = Printf.sprintf "value %d of %x" n (mix n)

let sum map = M.fold (fun key text total -> (total * 31) + key + Hashtbl.hash text) map 0

let () =
  let mebibytes = int_of_string Sys.argv.(1) in
  let count = mebibytes * 4000 in
  let map = ref M.empty in
  for n = 0 to count - 1 do
    map := M.add n (value n) !map
  done;
  Printf.printf "built %d %x\n%!" (M.cardinal !map) (sum !map);
  let table = Hashtbl.create 1000 in
  M.iter (fun key text -> Hashtbl.replace table text key) !map;
  let floats = Array.init (mebibytes * 8) (fun i -> Array.init 2048 (fun j -> float_of_int (mix (i + j) land 0xffff))) in
  for round = 0 to 2 do
    for n = 0 to count - 1 do
      if (n + round) mod 3 = 0 then map := M.add n (value (n + count * (round + 1))) !map
    done;
    Array.iteri (fun i a -> if i mod 3 = round then floats.(i) <- Array.map (fun x -> x +. 1.) a) floats;
    if round = 1 then Gc.compact ();
    Printf.printf "round %d %x %.0f\n%!" round (sum !map)
      (Array.fold_left (fun t a -> t +. Array.fold_left ( +. ) 0. a) 0. floats)
  done;
  for n = 0 to count - 1 do
    if Hashtbl.find table (value n) <> n then failwith "wrong"
  done;
  let sorted = Array.of_list (M.fold (fun _ text rest -> text :: rest) !map []) in
  Array.sort compare sorted;
  Printf.printf "sorted %d %x\n%!" (Array.length sorted) (Array.fold_left (fun t s -> (t * 31) + Hashtbl.hash s) 0 sorted);
  Gc.compact ();
  Printf.printf "last %d %x\n" (Hashtbl.length table) (sum !map)
