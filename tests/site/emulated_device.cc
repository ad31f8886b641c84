// What tests in Python set and read of the emulated devices of libcauseway_site_emulated.so.
#include "tests/emulation/emulator.h"
#include "worker/site/causeway_site.h"

using namespace causeway::emulation;  // NOLINT: as C functions.

extern "C" {

// Three devices of so many bytes, on which work is done when it is issued: their tensors belong to
// a trainer on the CPU, which does not wait for streams. `driver`: every call's answer, or 0.
CAUSEWAY_API void causeway_emulate(int64_t memory, int driver) {
  Machine machine;
  machine.devices = 3;
  machine.memory = static_cast<size_t>(memory);
  machine.driver = static_cast<cudaError_t>(driver);
  SetMachine(machine);
  SetEager(true);
}
CAUSEWAY_API int64_t causeway_emulated_waits(void) { return HostWaits(); }
CAUSEWAY_API int64_t causeway_emulated_waits_of_thread(void) { return HostWaitsOfThread(); }
CAUSEWAY_API int64_t causeway_emulated_kernels(void) { return KernelsLaunched(); }
CAUSEWAY_API int64_t causeway_emulated_allocations(void) { return AllocationsMade(); }
}
