-- Maps and sequences of about the given mebibytes, copied by every major collection. Prints check sums.
module Main (main) where

import Control.Monad (forM_, when)
import Data.Bits (shiftR, xor)
import qualified Data.IntMap.Strict as I
import Data.List (foldl')
import qualified Data.Map.Strict as M
import qualified Data.Sequence as S
import Data.Foldable (toList)
import System.Environment (getArgs)
import System.IO (hFlush, stdout)
import System.Mem (performMajorGC)

mix :: Int -> Int
mix n =
  let a = n * 0x1e3779b97f4a7c15
      b = (a `xor` (a `shiftR` 30)) * 0x3f58476d1ce4e5b9
   in b `xor` (b `shiftR` 27)

value :: Int -> String
value n = take 6 (show (mix n))

total :: M.Map Int String -> Int
total = M.foldlWithKey' (\t k v -> t * 31 + k + foldl' (\h c -> h * 33 + fromEnum c) 5 v) 0

force :: String -> String
force s = length s `seq` s

main :: IO ()
main = do
  [argument] <- getArgs
  let count = read argument * 2600 :: Int
      first = foldl' (\m n -> M.insert n (force (value n)) m) M.empty [0 .. count - 1]
      say label n = putStrLn (label ++ " " ++ show n) >> hFlush stdout
  say "built" (total first)
  let back = foldl' (\m (k, i) -> I.insert i k m) I.empty (zip (map mix (M.keys first)) [0 ..])
  let change m r =
        foldl' (\t n -> M.insert n (force (value (n + count * (r + 1)))) t) m [r, r + 3 .. count - 1]
      rounds = scanl change first [0 .. 2]
  forM_ (zip [0 :: Int ..] rounds) $ \(r, m) -> do
    say ("round " ++ show r) (total m)
    when (r == 1) performMajorGC
  let queue = foldl' (\q n -> mix n `seq` (q S.|> mix n)) S.empty [0 .. count * 2]
  say "sorted" (foldl' (\t x -> t * 31 + x) 0 (toList (S.unstableSort queue)))
  performMajorGC
  say "last" (I.foldlWithKey' (\t i k -> t * 31 + i + k) 0 back)
  say "first" (total first)
