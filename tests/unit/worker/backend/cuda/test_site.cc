#include "tests/unit/worker/backend/cuda/test_site.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/unit/worker/backend/cuda/test_backend.h"
#include "tests/unit/worker/backend/site_thread.h"
#include "worker/backend/cuda/nccl.h"
#include "worker/sync/site_backend.h"

namespace causeway::worker::cuda {
namespace {

// The processes 1, 2, ...; destroyed after process 0's backend.
struct Others {
  struct Process {
    Process(int number, const RankRange& ranks) : range(ranks), thread(number) {}
    const RankRange range;
    std::unique_ptr<ShardServer> server;
    SiteThread thread;  // Ends before what it uses.
  };

  Others(const v1::RunConfig& config, const FragmentPlan& plan, const std::vector<int>& devices) {
    const NcclLibrary* const nccl = NcclLibrary::Load().value();
    NcclSite site;
    site.size = std::accumulate(devices.begin(), devices.end(), 0);
    site.cause = std::make_shared<SharedCause>();
    EXPECT_EQ(nccl->get_unique_id(&site.id), kNcclSuccess);
    const CudaBackend::Options all = TestOptions(site.size);
    // All at the same time, as the processes of a site do: they wait for each other.
    std::vector<std::unique_ptr<ShardedBackend>> backends(devices.size());
    std::vector<RankRange> ranges;
    std::vector<std::thread> threads;
    int first = 0;
    for (const int count : devices) {
      ranges.push_back({first, count});
      first += count;
    }
    for (size_t i = 0; i < devices.size(); ++i) {
      threads.emplace_back([&, i] {
        const RankRange& range = ranges[i];
        CudaBackend::Options options = all;
        options.devices.assign(all.devices.begin() + range.first,
                               all.devices.begin() + range.first + range.count);
        options.ranks = site.size;
        options.first_rank = range.first;
        options.make_groups = [&](const std::vector<DeviceInfo>& mine) {
          std::vector<int> indices;
          for (const DeviceInfo& device : mine) indices.push_back(device.index);
          NcclSite here = site;
          here.first_rank = range.first;
          return MakeNcclGroups(*nccl, indices, here);
        };
        absl::StatusOr<std::unique_ptr<CudaBackend>> made =
            CudaBackend::Create(config, plan, options);
        EXPECT_TRUE(made.ok()) << made.status();
        if (made.ok()) backends[i] = *std::move(made);
      });
    }
    for (std::thread& thread : threads) thread.join();
    own = std::move(backends[0]);
    for (size_t i = 1; i < devices.size(); ++i) {
      Process& process =
          *processes.emplace_back(std::make_unique<Process>(static_cast<int>(i), ranges[i]));
      process.server =
          std::make_unique<ShardServer>(process.thread.far(), config, plan, std::move(backends[i]));
      ShardServer* const server = process.server.get();
      process.thread.Serve([server](SiteCall& call) { return server->HandleAtOnce(call); },
                           [server](SiteCall& call) { return server->Handle(call); });
    }
  }

  std::vector<SiteBackend::Other> links() {
    std::vector<SiteBackend::Other> links;
    for (const auto& process : processes)
      links.push_back({&process->thread.link(), process->range});
    return links;
  }

  std::unique_ptr<ShardedBackend> own;
  std::vector<std::unique_ptr<Process>> processes;
};

class SiteInThreads final : private Others, public SiteBackend {
 public:
  SiteInThreads(const v1::RunConfig& config, const FragmentPlan& plan,
                const std::vector<int>& devices)
      : Others(config, plan, devices), SiteBackend(config, plan, std::move(own), links()) {}
};

}  // namespace

std::unique_ptr<TrainingBackend> MakeTestSite(const v1::RunConfig& config, const FragmentPlan& plan,
                                              const std::vector<int>& devices) {
  return std::make_unique<SiteInThreads>(config, plan, devices);
}

}  // namespace causeway::worker::cuda
