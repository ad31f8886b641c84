// Calls of process 0 of a site to the others, over their SiteLinks, beside the methods of a
// PartServer; and the one thing that they ask of it.
//
// All of a site's processes are of one build (worker/run/site.h), so that nothing here has
// versions. Arrays are as they lie in memory.
#ifndef CAUSEWAY_WORKER_BACKEND_SITE_SITE_CALLS_H_
#define CAUSEWAY_WORKER_BACKEND_SITE_SITE_CALLS_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "worker/sync/remote_part.h"

namespace causeway::worker {

enum SiteMethod : int {
  // --- Coming together ---
  kSiteHello = kFirstOtherMethod,  // Who are you? JSON.
  kSiteConfig,                     // The run's RunConfig, serialized.
  kSitePlans,  // The kept measurements of matrix products (gemm_plan_store.h), as text.
  kSiteBuild,  // Make the backend. argument: the first rank; number: the ranks of the site; bytes:
               // the id of the GPUs' group. Answer: the matrix products, as text.
  kSiteEnd,    // Training is over. Nobody waits for an answer.
  kSiteStop,   // To process 0: this process was told to stop.
  // --- On CPUs (cpu_site.h) ---
  kSiteParameters,  // The arena of the next step.
  kSiteGradient,    // bytes: a share of a step's tokens. Answer: losses and gradient.
  // --- On GPUs (site_backend.h) ---
  kSiteStep,            // argument: the step; bytes: a share of its tokens. Answer: StepShare.
  kSiteSetParameters,   // bytes: the own pieces of master weights.
  kSiteCopyParameters,  // Answer: the same.
  kSiteCopyMoments,     // argument: 0 for the first, 1 for the second. Answer: the own pieces.
  kSiteRestoreFirst,    // bytes: the own pieces of the first moments.
  kSiteRestoreMoments,  // argument: updates; bytes: those of the second.
  kSiteRefreshWeights,  // Process 0 has used its GPUs' weights for an evaluation.
  kSiteMakePart,        // A new ReplicaPart, for the methods of PartServer.
};

// Text in a call or an answer.
inline std::span<const uint8_t> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
inline std::string TextOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_SITE_SITE_CALLS_H_
