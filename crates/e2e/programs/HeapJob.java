import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;

/** Fills a heap of about the given mebibytes with arrays, strings and maps, works on it while
 *  garbage is collected, and prints check sums. */
public class HeapJob {
    static long mix(long x) {
        x += 0x9e3779b97f4a7c15L;
        x = (x ^ (x >>> 30)) * 0xbf58476d1ce4e5b9L;
        x = (x ^ (x >>> 27)) * 0x94d049bb133111ebL;
        return x ^ (x >>> 31);
    }

    public static void main(String[] arguments) throws Exception {
        long bytes = Long.parseLong(arguments[0]) << 20;
        List<long[]> arrays = new ArrayList<>();
        for (long used = 0; used < bytes / 2; used += 65536) {
            long[] array = new long[8192 - 2];
            for (int i = 0; i < array.length; i++) array[i] = mix(used + i);
            arrays.add(array);
        }
        Map<String, String> map = new HashMap<>();
        for (long used = 0, i = 0; used < bytes / 4; used += 200, i++) {
            map.put("key " + i, "value " + mix(i) + " of " + i);
        }
        Thread[] threads = new Thread[3];
        long[] sums = new long[threads.length];
        for (int t = 0; t < threads.length; t++) {
            final int number = t;
            threads[t] = new Thread(() -> {
                long sum = 0;
                // Garbage in plenty beside the work: the collector moves what lives.
                for (int round = 0; round < 3; round++) {
                    for (int i = number; i < arrays.size(); i += 3) {
                        long[] copy = arrays.get(i).clone();
                        for (long value : copy) sum += value * (round + 1);
                        if (round == 1) {
                            for (int j = 0; j < copy.length; j++) copy[j] ^= number;
                            arrays.set(i, copy);
                        }
                    }
                }
                sums[number] = sum;
            });
            threads[t].start();
        }
        for (Thread thread : threads) thread.join();
        for (long sum : sums) System.out.println(sum);
        CRC32 all = new CRC32();
        for (long[] array : arrays) {
            for (long value : array) all.update((int) (value >>> 13));
        }
        System.out.println("arrays " + arrays.size() + " " + all.getValue());
        long strings = 0;
        for (Map.Entry<String, String> entry : map.entrySet()) {
            strings += mix(entry.getKey().hashCode() * 31L + entry.getValue().hashCode());
        }
        System.out.println("map " + map.size() + " " + strings);
        for (int i = 0; i < map.size(); i += 1000) {
            String value = map.get("key " + i);
            if (!value.equals("value " + mix(i) + " of " + i)) throw new Exception("wrong: " + value);
        }
    }
}
