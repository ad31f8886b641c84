#include "tests/simulation/planted_bugs.h"

namespace causeway::simulation {
namespace {

using server::Coordinator;

class TwiceApplier final : public Calls {
 public:
  absl::Status Contribute(Coordinator& own, const v1::PushHeader& header,
                          const SharedBytes& object) override {
    RETURN_IF_ERROR(Calls::Contribute(own, header, object));
    counted_[{header.fragment(), header.worker_id()}] = {header, object};
    return absl::OkStatus();
  }
  void Tick(Coordinator& own) override {
    Calls::Tick(own);
    for (auto& [key, entry] : counted_) {
      v1::PushHeader again = entry.first;
      again.set_round(again.round() + 1);
      again.clear_base_hash();  // Else it is refused for the version that it was taken against.
      Calls::Contribute(own, again, entry.second).IgnoreError();
    }
  }

 private:
  // The last contribution per fragment and worker.
  std::map<std::pair<int, std::string>, std::pair<v1::PushHeader, SharedBytes>> counted_;
};

class Hasty final : public Calls {
 public:
  absl::Status Contribute(Coordinator& /*own*/, const v1::PushHeader& header,
                          const SharedBytes& object) override {
    taken_.emplace_back(header, object);
    return absl::OkStatus();
  }
  void MergeDue(Coordinator& own, int fragment) override {
    for (auto& [header, bytes] : std::exchange(taken_, {})) {
      Calls::Contribute(own, header, bytes).IgnoreError();
    }
    Calls::MergeDue(own, fragment);
  }

 private:
  std::vector<std::pair<v1::PushHeader, SharedBytes>> taken_;
};

class Unfenced final : public Calls {
 public:
  absl::StatusOr<v1::Welcome> Join(Coordinator& own, const v1::Join& join,
                                   std::shared_ptr<server::SessionSink> sink) override {
    ASSIGN_OR_RETURN(v1::Welcome welcome, Calls::Join(own, join, std::move(sink)));
    present_[join.worker_id()] = welcome.incarnation();
    return welcome;
  }
  absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(Coordinator& own,
                                                            const v1::PushHeader& header) override {
    return Calls::BeginPush(own, Present(header));
  }
  absl::Status Contribute(Coordinator& own, const v1::PushHeader& header,
                          const SharedBytes& object) override {
    return Calls::Contribute(own, Present(header), object);
  }

 private:
  v1::PushHeader Present(v1::PushHeader header) const {
    const auto found = present_.find(header.worker_id());
    if (found != present_.end()) header.set_incarnation(found->second);
    return header;
  }
  std::map<std::string, uint64_t> present_;
};

class FailsAfterLeave final : public Calls {
 public:
  absl::Status Handle(Coordinator& own, const std::string& worker_id, uint64_t incarnation,
                      const v1::WorkerMessage& message) override {
    RETURN_IF_ERROR(Health(own));
    const absl::Status status = Calls::Handle(own, worker_id, incarnation, message);
    failed_ = failed_ || (status.ok() && message.has_leave());
    return status;
  }
  absl::StatusOr<v1::Welcome> Join(Coordinator& own, const v1::Join& join,
                                   std::shared_ptr<server::SessionSink> sink) override {
    RETURN_IF_ERROR(Health(own));
    return Calls::Join(own, join, std::move(sink));
  }
  absl::Status Health(const Coordinator& own) override {
    return failed_ ? absl::UnavailableError("the disk failed") : Calls::Health(own);
  }

 private:
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<Calls> AppliesTwice() { return std::make_unique<TwiceApplier>(); }
std::unique_ptr<Calls> AcknowledgesFirst() { return std::make_unique<Hasty>(); }
std::unique_ptr<Calls> AcceptsStaleIncarnations() { return std::make_unique<Unfenced>(); }
std::unique_ptr<Calls> FailsAfterALeave() { return std::make_unique<FailsAfterLeave>(); }

}  // namespace causeway::simulation
