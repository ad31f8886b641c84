// The curves of a run: what workers told while they trained, thinned out (BoundedSeries), and
// the file that keeps them from one coordinator process to the next: an array file
// (docs/formats.md) of kind CWAYCURV, written anew every 30 s and at the end. In place of a damaged
// one the curves begin anew. A point stands for `stride` samples, the last one for `in_last`.
// - Metadata: run_id; workers, a list of id, stride, in_last; held_out with stride and in_last.
// - Arrays 0, 1, ... of each worker in that order, 12 doubles a point: seconds since 1970, step,
//   then sum and number of samples of loss, tokens/s, utilization, bytes/s up and bytes/s down.
// - Array held_out, 2 doubles a point: step, loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"

namespace causeway::server {

// A curve of bounded length over a run of any length.
//
// Points are kept one by one until there are `capacity` of them; then every two neighbours become
// one, and from there on a point stands for twice as many samples. So the curve always covers
// everything since its beginning, in capacity / 2 to capacity points of even weight.

// Point has `void Merge(const Point& later)`. Not thread-safe.
template <typename Point>
class BoundedSeries {
 public:
  // `capacity` is even and 2 or more.
  explicit BoundedSeries(size_t capacity) : capacity_(capacity) {}

  // As another one was: its points, stride and samples_in_last. Nothing if none can be so.
  static std::optional<BoundedSeries> Of(size_t capacity, std::vector<Point> points, int64_t stride,
                                         int64_t samples_in_last) {
    constexpr int64_t kLongest = int64_t{1} << 60;  // Far from where doubling overflows.
    const bool is_power_of_two = stride > 0 && (stride & (stride - 1)) == 0;
    if (points.size() > capacity || !is_power_of_two || stride > kLongest ||
        samples_in_last < (points.empty() ? 0 : 1) ||
        samples_in_last > (points.empty() ? 0 : stride)) {
      return std::nullopt;
    }
    BoundedSeries series(capacity);
    series.points_ = std::move(points);
    series.stride_ = stride;
    series.samples_in_last_ = samples_in_last;
    return series;
  }

  void Add(const Point& point) {
    // The last point takes samples until it stands for as many as the others.
    if (samples_in_last_ > 0 && samples_in_last_ < stride_) {
      points_.back().Merge(point);
      ++samples_in_last_;
      return;
    }
    if (points_.size() == capacity_) Halve();
    points_.push_back(point);
    samples_in_last_ = 1;
  }

  // Forgets the newest points, as long as they are `beyond`.
  template <typename Predicate>
  void DropTail(const Predicate& beyond) {
    while (!points_.empty() && beyond(points_.back())) {
      points_.pop_back();
      samples_in_last_ = stride_;
    }
    if (points_.empty()) samples_in_last_ = 0;
  }

  // Oldest first. The last one may stand for fewer samples than the others.
  const std::vector<Point>& points() const { return points_; }
  // Samples that a point stands for.
  int64_t stride() const { return stride_; }
  // 0 if there is none.
  int64_t samples_in_last() const { return samples_in_last_; }

 private:
  void Halve() {
    for (size_t i = 0; i < points_.size() / 2; ++i) {
      points_[i] = points_[2 * i];
      points_[i].Merge(points_[2 * i + 1]);
    }
    points_.resize(points_.size() / 2);
    stride_ *= 2;
  }

  size_t capacity_;
  std::vector<Point> points_;
  int64_t stride_ = 1;
  int64_t samples_in_last_ = 0;
};

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
