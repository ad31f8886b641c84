#include "tests/simulation/planted_bugs.h"

namespace causeway::simulation {
namespace {

using server::Coordinator;

// Hands everything on.
class Around : public Coordinator, public server::Members, public server::Rounds {
 public:
  explicit Around(std::unique_ptr<Coordinator> real) : real_(std::move(real)) {}

  const v1::RunConfig& config() const override { return real_->config(); }
  const FragmentPlan& plan() const override { return real_->plan(); }
  const std::string& run_id() const override { return real_->run_id(); }
  v1::DescribeResponse Describe() const override { return real_->Describe(); }
  server::Members& members() override { return *this; }
  server::Rounds& rounds() override { return *this; }
  server::Orders& orders() override { return real_->orders(); }
  server::Region* region() override { return real_->region(); }
  absl::StatusOr<v1::Welcome> Join(const v1::Join& join,
                                   std::shared_ptr<server::SessionSink> sink) override {
    return real_->members().Join(join, std::move(sink));
  }
  absl::Status Handle(const std::string& worker_id, uint64_t incarnation,
                      const v1::WorkerMessage& message) override {
    return real_->members().Handle(worker_id, incarnation, message);
  }
  void Disconnected(const std::string& worker_id, uint64_t incarnation,
                    const absl::Status& why) override {
    real_->members().Disconnected(worker_id, incarnation, why);
  }
  absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(const v1::PushHeader& header,
                                                            server::RoundClosed closed) override {
    return real_->rounds().BeginPush(header, std::move(closed));
  }
  std::vector<double> MeasureLeaf(int fragment, int64_t round, int64_t leaf,
                                  std::span<const uint8_t> bytes) const override {
    return real_->rounds().MeasureLeaf(fragment, round, leaf, bytes);
  }
  absl::StatusOr<v1::PushResponse> Contribute(const v1::PushHeader& header,
                                              server::ReceivedObject object) override {
    return real_->rounds().Contribute(header, std::move(object));
  }
  void MergeDue(int fragment) override { real_->rounds().MergeDue(fragment); }
  void PullAnswer(int fragment, int64_t round, server::PullCallback callback) override {
    real_->rounds().PullAnswer(fragment, round, std::move(callback));
  }
  absl::StatusOr<std::shared_ptr<const server::PullObject>> PullState(int fragment) override {
    return real_->rounds().PullState(fragment);
  }
  void RecordPulled(const std::string& worker_id, v1::Want::Object object, int64_t bytes) override {
    real_->rounds().RecordPulled(worker_id, object, bytes);
  }
  void Tick() override { real_->Tick(); }
  bool Maintain() override { return real_->Maintain(); }
  v1::RunStatus GetStatus() const override { return real_->GetStatus(); }
  End Ended() const override { return real_->Ended(); }
  absl::Status Health() const override { return real_->Health(); }
  absl::Status Shutdown() override { return real_->Shutdown(); }
  std::vector<float> PublishedParameters() const override { return real_->PublishedParameters(); }

 protected:
  Coordinator& real() { return *real_; }

 private:
  const std::unique_ptr<Coordinator> real_;
};

class TwiceApplier final : public Around {
 public:
  using Around::Around;
  absl::StatusOr<v1::PushResponse> Contribute(const v1::PushHeader& header,
                                              server::ReceivedObject object) override {
    ASSIGN_OR_RETURN(v1::PushResponse accepted, Around::Contribute(header, object));
    counted_[{header.fragment(), header.worker_id()}] = {header, std::move(object.bytes)};
    return accepted;
  }
  void Tick() override {
    Around::Tick();
    for (auto& [key, entry] : counted_) {
      v1::PushHeader again = entry.first;
      again.set_round(again.round() + 1);
      again.clear_base_hash();  // Else it is refused for the version that it was taken against.
      real().rounds().Contribute(again, entry.second).status().IgnoreError();
    }
  }

 private:
  // The last contribution per fragment and worker.
  std::map<std::pair<int, std::string>, std::pair<v1::PushHeader, SharedBytes>> counted_;
};

class Hasty final : public Around {
 public:
  using Around::Around;
  absl::StatusOr<v1::PushResponse> Contribute(const v1::PushHeader& header,
                                              server::ReceivedObject object) override {
    taken_.emplace_back(header, std::move(object.bytes));
    return v1::PushResponse();
  }
  void MergeDue(int fragment) override {
    for (auto& [header, bytes] : std::exchange(taken_, {})) {
      real().rounds().Contribute(header, bytes).status().IgnoreError();
    }
    Around::MergeDue(fragment);
  }

 private:
  std::vector<std::pair<v1::PushHeader, SharedBytes>> taken_;
};

class Unfenced final : public Around {
 public:
  using Around::Around;
  absl::StatusOr<v1::Welcome> Join(const v1::Join& join,
                                   std::shared_ptr<server::SessionSink> sink) override {
    ASSIGN_OR_RETURN(v1::Welcome welcome, Around::Join(join, std::move(sink)));
    present_[join.worker_id()] = welcome.incarnation();
    return welcome;
  }
  absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(const v1::PushHeader& header,
                                                            server::RoundClosed closed) override {
    return Around::BeginPush(Present(header), std::move(closed));
  }
  absl::StatusOr<v1::PushResponse> Contribute(const v1::PushHeader& header,
                                              server::ReceivedObject object) override {
    return Around::Contribute(Present(header), std::move(object));
  }

 private:
  v1::PushHeader Present(v1::PushHeader header) const {
    const auto found = present_.find(header.worker_id());
    if (found != present_.end()) header.set_incarnation(found->second);
    return header;
  }
  std::map<std::string, uint64_t> present_;
};

class FailsAfterLeave final : public Around {
 public:
  using Around::Around;
  absl::Status Handle(const std::string& worker_id, uint64_t incarnation,
                      const v1::WorkerMessage& message) override {
    RETURN_IF_ERROR(Health());
    const absl::Status status = Around::Handle(worker_id, incarnation, message);
    failed_ = failed_ || (status.ok() && message.has_leave());
    return status;
  }
  absl::StatusOr<v1::Welcome> Join(const v1::Join& join,
                                   std::shared_ptr<server::SessionSink> sink) override {
    RETURN_IF_ERROR(Health());
    return Around::Join(join, std::move(sink));
  }
  absl::Status Health() const override {
    return failed_ ? absl::UnavailableError("the disk failed") : Around::Health();
  }

 private:
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<Coordinator> AppliesTwice(std::unique_ptr<Coordinator> real) {
  return std::make_unique<TwiceApplier>(std::move(real));
}

std::unique_ptr<Coordinator> AcknowledgesFirst(std::unique_ptr<Coordinator> real) {
  return std::make_unique<Hasty>(std::move(real));
}

std::unique_ptr<Coordinator> AcceptsStaleIncarnations(std::unique_ptr<Coordinator> real) {
  return std::make_unique<Unfenced>(std::move(real));
}

std::unique_ptr<Coordinator> FailsAfterALeave(std::unique_ptr<Coordinator> real) {
  return std::make_unique<FailsAfterLeave>(std::move(real));
}

}  // namespace causeway::simulation
