#include "worker/backend/cuda/kernels/device.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace causeway::worker::cuda {
namespace {

constexpr char kOnTheCpu[] = "to compute on this machine's processors, give --device=cpu";

std::string Gigabytes(size_t bytes) {
  return absl::StrFormat("%.2f GB", static_cast<double>(bytes) / 1e9);
}

// Where a working driver leaves traces.
std::string DriverTraces(FileSystem& files) {
  std::vector<std::string> found;
  for (const char* const path :
       {"/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"}) {
    found.push_back(absl::StrCat(path, files.Exists(path) ? " exists" : " is not there"));
  }
  return absl::StrJoin(found, ", ");
}

absl::Status NoDevices(cudaError_t error, FileSystem& files) {
  return absl::FailedPreconditionError(absl::StrCat(
      "no GPU can be used: ", cudaGetErrorString(error), " (", cudaGetErrorName(error),
      "). Looked for NVIDIA's driver library libcuda.so.1 (", DriverAndNeed("this program"),
      "), and for its traces: ", DriverTraces(files),
      ". In a container, give it the GPUs (docker run --gpus all); otherwise install the driver; ",
      kOnTheCpu));
}

absl::StatusOr<DeviceInfo> Inspect(int index) {
  DeviceInfo info;
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CheckCuda(cudaGetDeviceProperties(&properties, index),
                            absl::StrCat("asking for the properties of GPU ", index)));
  info.index = index;
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.memory = properties.totalGlobalMem;
  RETURN_IF_ERROR(UseDevice(index));
  const cudaError_t error = ProbeMachineCode();
  if (error == cudaErrorNoKernelImageForDevice) {
    (void)cudaGetLastError();
    return absl::FailedPreconditionError(absl::StrCat(
        "GPU ", index, " (", info.name, ") has compute capability ", info.major, ".", info.minor,
        "; this program was built for ", CAUSEWAY_CUDA_ARCHITECTURES,
        " (of 8.0 and later, which bf16 needs). Build with -DCAUSEWAY_CUDA_ARCHITECTURES=",
        info.major, info.minor, ", or choose another GPU with --device=cuda:N; ", kOnTheCpu));
  }
  RETURN_IF_ERROR(CheckCuda(error, absl::StrCat("looking for machine code for GPU ", index)));
  return info;
}

// Whether no later call of this process can succeed: a fault of the hardware or of a kernel, rather
// than a call that was wrong. By number, for older toolkits lack some of the names.
bool IsLost(cudaError_t error) {
  const int number = static_cast<int>(error);
  constexpr std::array kFaults = {46, 214, 220, 700, 702, 710, 999};
  return std::ranges::find(kFaults, number) != kFaults.end() || (714 <= number && number <= 719);
}

}  // namespace

absl::Status CheckCuda(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // It is reported here; what comes next starts clean.
  const std::string text =
      absl::StrCat(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(text);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInitializationError:
      return absl::FailedPreconditionError(text);
    default:
      break;
  }
  if (!IsLost(error)) return absl::InternalError(text);
  return absl::UnavailableError(
      absl::StrCat(text,
                   "; the GPU cannot be used any more by this process: start the worker again, and "
                   "look at nvidia-smi and the kernel's log if it happens again"));
}

absl::Status CheckLaunches(absl::string_view what) { return CheckCuda(cudaGetLastError(), what); }

absl::StatusOr<std::vector<int>> ListDevices(const std::vector<int>& indices, FileSystem& files) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    return NoDevices(error == cudaSuccess ? cudaErrorNoDevice : error, files);
  }
  std::vector<int> wanted = indices;
  if (wanted.empty()) {
    for (int i = 0; i < count; ++i) wanted.push_back(i);
  }
  for (const int index : wanted) {
    if (index < 0 || index >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no GPU ", index, ": this machine has ", count, ", numbered from 0",
                       " (CUDA_VISIBLE_DEVICES may hide some)"));
    }
    if (std::ranges::count(wanted, index) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("GPU ", index, " is named twice"));
    }
  }
  return wanted;
}

absl::StatusOr<std::vector<DeviceInfo>> DiscoverDevices(const std::vector<int>& indices,
                                                        FileSystem& files) {
  ASSIGN_OR_RETURN(const std::vector<int> wanted, ListDevices(indices, files));
  std::vector<DeviceInfo> devices;
  for (const int index : wanted) {
    ASSIGN_OR_RETURN(DeviceInfo info, Inspect(index));
    devices.push_back(std::move(info));
  }
  return devices;
}

std::string DescribeDevices(const std::vector<DeviceInfo>& devices) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < devices.size();) {
    size_t end = begin;
    while (end < devices.size() && devices[end].name == devices[begin].name) ++end;
    parts.push_back(end - begin == 1 ? devices[begin].name
                                     : absl::StrCat(end - begin, " x ", devices[begin].name));
    begin = end;
  }
  return absl::StrJoin(parts, ", ");
}

std::string DriverAndNeed(absl::string_view what) {
  int driver = 0;
  int runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  const auto version = [](int number) {
    return absl::StrCat(number / 1000, ".", number % 1000 / 10);
  };
  return absl::StrCat(driver == 0 ? "not found, or too old"
                                  : absl::StrCat("it speaks CUDA ", version(driver), " at most"),
                      "; ", what, " needs CUDA ", version(runtime));
}

absl::Status UseDevice(int index) {
  return CheckCuda(cudaSetDevice(index), absl::StrCat("using GPU ", index));
}

size_t DeviceMemory::bytes() const {
  size_t sum = 0;
  for (const Arena& arena : arenas_) sum += arena.bytes;
  return sum;
}

std::string DeviceMemory::Describe() const {
  std::vector<std::string> parts;
  for (const Arena& arena : arenas_) {
    std::string part = absl::StrCat(arena.name, " ", Gigabytes(arena.bytes));
    if (!arena.lower.empty()) absl::StrAppend(&part, " (lowered by ", arena.lower, ")");
    parts.push_back(std::move(part));
  }
  return parts.empty() ? "nothing" : absl::StrJoin(parts, ", ");
}

absl::StatusOr<void*> DeviceMemory::AllocateBytes(absl::string_view arena, size_t bytes,
                                                  absl::string_view lower) {
  void* block = nullptr;
  const cudaError_t error = cudaMalloc(&block, std::max<size_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    size_t free_bytes = 0;
    size_t total = 0;
    (void)cudaMemGetInfo(&free_bytes, &total);
    int device = 0;
    (void)cudaGetDevice(&device);
    std::string text = absl::StrCat("the memory of GPU ", device, " does not suffice: ", arena,
                                    " needs ", Gigabytes(bytes), ", ", Gigabytes(free_bytes),
                                    " of ", Gigabytes(total), " are free");
    if (!lower.empty()) absl::StrAppend(&text, "; ", lower, " lowers it");
    absl::StrAppend(&text, ". Allocated before: ", Describe());
    return absl::ResourceExhaustedError(text);
  }
  RETURN_IF_ERROR(CheckCuda(error, absl::StrCat("allocating ", Gigabytes(bytes), " for ", arena)));
  blocks_.emplace_back(block);
  const auto known = std::ranges::find(arenas_, arena, &Arena::name);
  if (known != arenas_.end()) {
    known->bytes += bytes;
  } else {
    arenas_.push_back({std::string(arena), std::string(lower), bytes});
  }
  return block;
}

absl::StatusOr<Stream> Stream::Create(bool urgent) {
  int least = 0;
  int greatest = 0;
  RETURN_IF_ERROR(CheckCuda(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                            "asking for the priorities of streams"));
  cudaStream_t created = nullptr;
  RETURN_IF_ERROR(CheckCuda(
      cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, urgent ? greatest : least),
      "creating a stream"));
  Stream stream;
  stream.stream_.reset(created);
  return stream;
}

absl::StatusOr<Event> Event::Create(bool timing, bool sleeps) {
  cudaEvent_t created = nullptr;
  const unsigned flags = (timing ? cudaEventDefault : cudaEventDisableTiming) |
                         (sleeps ? cudaEventBlockingSync : cudaEventDefault);
  RETURN_IF_ERROR(CheckCuda(cudaEventCreateWithFlags(&created, flags), "creating an event"));
  Event event;
  event.event_.reset(created);
  return event;
}

absl::StatusOr<double> Event::SecondsSince(const Event& earlier) const {
  RETURN_IF_ERROR(Wait("a measurement"));
  float milliseconds = 0;
  RETURN_IF_ERROR(CheckCuda(cudaEventElapsedTime(&milliseconds, earlier.get(), get()),
                            "reading the time between events"));
  return 1e-3 * static_cast<double>(milliseconds);
}

absl::StatusOr<Graph> Graph::End(cudaStream_t stream, const absl::Status& issued) {
  cudaGraph_t recorded = nullptr;
  absl::Status status =
      CheckCuda(cudaStreamEndCapture(stream, &recorded), "ending the record of a graph");
  cudaGraphExec_t made = nullptr;
  if (issued.ok() && status.ok()) {
    status = CheckCuda(cudaGraphInstantiate(&made, recorded, 0), "making a graph ready");
  }
  Graph graph;
  graph.exec_.reset(made);
  if (recorded != nullptr) (void)cudaGraphDestroy(recorded);
  RETURN_IF_ERROR(issued);
  RETURN_IF_ERROR(status);
  return graph;
}

}  // namespace causeway::worker::cuda
