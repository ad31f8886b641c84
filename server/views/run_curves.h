// The curves of a run: what workers told while they trained, thinned out (bounded_series.h), and
// the file that keeps them from one coordinator process to the next: an array file
// (docs/formats.md) of kind CWAYCURV, written anew every 30 s and at the end. In place of a damaged
// one the curves begin anew. A point stands for `stride` samples, the last one for `in_last`.
// - Metadata: run_id; workers, a list of id, stride, in_last; held_out with stride and in_last.
// - Arrays 0, 1, ... of each worker in that order, 12 doubles a point: seconds since 1970, step,
//   then sum and number of samples of loss, tokens/s, utilization, bytes/s up and bytes/s down.
// - Array held_out, 2 doubles a point: step, loss.
#ifndef CAUSEWAY_SERVER_VIEWS_RUN_CURVES_H_
#define CAUSEWAY_SERVER_VIEWS_RUN_CURVES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "server/views/bounded_series.h"

namespace causeway::server {

// The mean of what was known.
class Mean {
 public:
  Mean() = default;
  Mean(double sum, int64_t count) : sum_(sum), count_(count) {}

  void Add(double value) {
    sum_ += value;
    ++count_;
  }
  void Add(const Mean& other) {
    sum_ += other.sum_;
    count_ += other.count_;
  }
  double sum() const { return sum_; }
  int64_t count() const { return count_; }
  // Nothing if nothing was added.
  std::optional<double> value() const {
    if (count_ == 0) return std::nullopt;
    return sum_ / static_cast<double>(count_);
  }

 private:
  double sum_ = 0;
  int64_t count_ = 0;
};

// One worker's progress between two heartbeats or over several.
struct ProgressPoint {
  double unix_s = 0;  // This and the step: at its end.
  int64_t step = 0;
  Mean train_loss;         // Nats per token, over the steps that heartbeats tell of.
  Mean tokens_per_second;  // Tokens over wall time, waiting included.
  Mean utilization;        // Compute / (compute + blocked).
  Mean up_bytes_per_second;
  Mean down_bytes_per_second;

  void Merge(const ProgressPoint& later);
};

// The published parameters on held-out text.
struct EvaluationPoint {
  int64_t step = 0;
  double loss = 0;

  void Merge(const EvaluationPoint& later) { *this = later; }
};

struct WorkerCurve {
  std::string worker_id;
  std::vector<ProgressPoint> points;
};

struct RunCurves {
  std::map<std::string, BoundedSeries<ProgressPoint>> workers;  // By id.
  BoundedSeries<EvaluationPoint> held_out;                      // By step.
};

// Replaces `path` durably. After an error the old file stands.
absl::Status WriteRunCurves(FileSystem& file_system, const std::string& path,
                            const std::string& run_id, const RunCurves& curves);
// Series take `capacity` points. DATA_LOSS if the file is damaged or holds what no coordinator
// writes, FAILED_PRECONDITION if it is of another run, format or capacity.
absl::StatusOr<RunCurves> ReadRunCurves(FileSystem& file_system, const std::string& path,
                                        const std::string& run_id, size_t capacity);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_VIEWS_RUN_CURVES_H_
