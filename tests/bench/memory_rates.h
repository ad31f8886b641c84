// This machine's memory rates, measured in the same run as what is compared with it.
#ifndef CAUSEWAY_TESTS_BENCH_MEMORY_RATES_H_
#define CAUSEWAY_TESTS_BENCH_MEMORY_RATES_H_

#include <cstddef>

namespace causeway::bench {

struct MemoryRates {
  double memcpy_bytes_per_s = 0;  // Bytes copied, counted once.
  // a[i] = b[i] + s * c[i] in double: 24 bytes per i, as STREAM counts.
  double triad_bytes_per_s = 0;
  // The same over the seconds that the threads computed, all added up: on a machine that others
  // use, too, it tells more than the time that passed.
  double triad_bytes_per_cpu_s = 0;
};

// Processor time of all threads of this process together.
double ProcessCpuSeconds();

// The best of `repeats` passes on `threads` threads over three arrays of `array_bytes` each, which
// should be several times the last-level cache. They are freed again on return.
MemoryRates MeasureMemory(int threads, size_t array_bytes, int repeats);

}  // namespace causeway::bench

#endif  // CAUSEWAY_TESTS_BENCH_MEMORY_RATES_H_
