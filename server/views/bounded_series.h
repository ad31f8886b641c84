// A curve of bounded length over a run of any length.
//
// Points are kept one by one until there are `capacity` of them; then every two neighbours become
// one, and from there on a point stands for twice as many samples. So the curve always covers
// everything since its beginning, in capacity / 2 to capacity points of even weight.
#ifndef CAUSEWAY_SERVER_VIEWS_BOUNDED_SERIES_H_
#define CAUSEWAY_SERVER_VIEWS_BOUNDED_SERIES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace causeway::server {

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

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_VIEWS_BOUNDED_SERIES_H_
