// The exchange with all coordinators of a run: what concerns a fragment goes over the link to the
// one that has it. Most runs have one coordinator; those with shards have several.
#ifndef CAUSEWAY_COMMON_CLIENT_FRAGMENT_EXCHANGE_H_
#define CAUSEWAY_COMMON_CLIENT_FRAGMENT_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/session.pb.h"
#include "common/client/exchange.h"
#include "common/client/grpc_exchange.h"
#include "common/client/link.h"

namespace causeway {

// A shard that moves is found again: what was under way to its former address is repeated.
class FragmentExchange final : public Exchange {
 public:
  struct Options {
    GrpcExchange::Options lead;  // For fragments that no shard has.
    // The link to a shard's address; the same each time. Called by any thread.
    std::function<absl::StatusOr<std::shared_ptr<Link>>(const std::string& address)> link;
  };
  FragmentExchange(Options options, const std::vector<v1::Shard>& shards);

  // From now on the shards are there.
  void Place(const std::vector<v1::Shard>& shards);

  absl::Status Push(const Contribution& contribution) override;
  absl::StatusOr<PulledObject> PullAnswer(int fragment, int64_t round, int64_t due_step) override;
  absl::StatusOr<PulledObject> PushAndPull(
      const Contribution& contribution,
      const std::function<void(const absl::Status&)>& pushed) override;
  absl::StatusOr<PulledObject> PullState(int fragment) override;
  void ReportApplied(int fragment, int64_t round, uint64_t published_hash) override;
  void Cancel() override;
  int64_t bytes_up() const override;
  int64_t bytes_down() const override;

 private:
  // A coordinator at one address.
  struct Peer {
    std::string address;         // Empty: the lead.
    std::shared_ptr<Link> link;  // A shard's; outlives the exchange.
    absl::Status status;         // Not OK: there is no exchange.
    std::unique_ptr<GrpcExchange> exchange;
  };
  using PeerPointer = std::shared_ptr<const Peer>;

  PeerPointer MakePeer(const std::string& address) const;
  PeerPointer Find(int fragment) const;
  // Those that have an exchange.
  std::set<PeerPointer> Peers() const;
  bool IsCancelled() const;
  // Returns what `call` makes of the peer that has the fragment; asks again if that has moved.
  template <typename Result, typename Call>
  Result OnPeer(int fragment, const Call& call);

  const Options options_;
  mutable absl::Mutex mutex_;
  std::map<int, PeerPointer> peers_ ABSL_GUARDED_BY(mutex_);  // By fragment; those of shards.
  const PeerPointer lead_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CLIENT_FRAGMENT_EXCHANGE_H_
