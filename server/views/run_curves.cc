#include "server/views/run_curves.h"

#include <array>
#include <cmath>

#include "common/files/array_file.h"

namespace causeway::server {
namespace {

using nlohmann::json;

constexpr ArrayFileKind kCurvesKind = {'C', 'W', 'A', 'Y', 'C', 'U', 'R', 'V'};
constexpr uint32_t kVersion = 1;
constexpr double kLargestInteger = 9007199254740992;  // 2^53: beyond it doubles skip integers.
constexpr size_t kMaxWorkers = 4096;
constexpr char kHeldOut[] = "held_out";

// A point as numbers in the order of the file.
using ProgressRow = std::array<double, 12>;
using EvaluationRow = std::array<double, 2>;

constexpr Mean ProgressPoint::*kMeans[] = {
    &ProgressPoint::train_loss, &ProgressPoint::tokens_per_second, &ProgressPoint::utilization,
    &ProgressPoint::up_bytes_per_second, &ProgressPoint::down_bytes_per_second};

bool IsCount(double value) {
  return value >= 0 && value <= kLargestInteger && value == std::floor(value);
}

ProgressRow RowOf(const ProgressPoint& point) {
  ProgressRow row = {point.unix_s, static_cast<double>(point.step)};
  size_t at = 2;
  for (const auto mean : kMeans) {
    row[at++] = (point.*mean).sum();
    row[at++] = static_cast<double>((point.*mean).count());
  }
  return row;
}
EvaluationRow RowOf(const EvaluationPoint& point) {
  return {static_cast<double>(point.step), point.loss};
}

bool FromRow(const ProgressRow& row, ProgressPoint& point) {
  if (!(row[0] > 0 && row[0] < kLargestInteger) || !IsCount(row[1])) return false;
  point.unix_s = row[0];
  point.step = static_cast<int64_t>(row[1]);
  size_t at = 2;
  for (const auto mean : kMeans) {
    const double sum = row[at++];
    const double count = row[at++];
    if (!std::isfinite(sum) || sum < 0 || !IsCount(count)) return false;
    point.*mean = Mean(sum, static_cast<int64_t>(count));
  }
  return true;
}
bool FromRow(const EvaluationRow& row, EvaluationPoint& point) {
  if (!IsCount(row[0]) || !std::isfinite(row[1]) || row[1] < 0) return false;
  point = {static_cast<int64_t>(row[0]), row[1]};
  return true;
}

template <typename Point>
auto RowsOf(const BoundedSeries<Point>& series) {
  std::vector<decltype(RowOf(std::declval<Point>()))> rows;
  for (const Point& point : series.points()) rows.push_back(RowOf(point));
  return rows;
}

template <typename Point>
json Describe(const BoundedSeries<Point>& series) {
  return {{"stride", series.stride()}, {"in_last", series.samples_in_last()}};
}

// Nothing if the file cannot be of this program.
template <typename Point>
std::optional<BoundedSeries<Point>> SeriesOf(const ArrayFile& file, const std::string& name,
                                             const json& description, size_t capacity) {
  using Row = decltype(RowOf(std::declval<Point>()));
  const NamedBytes* const bytes = file.Find(name);
  if (bytes == nullptr || bytes->bytes.size() % sizeof(Row) != 0 || !description.is_object() ||
      !description.value("stride", json()).is_number_integer() ||
      !description.value("in_last", json()).is_number_integer()) {
    return std::nullopt;
  }
  std::vector<Row> rows(bytes->bytes.size() / sizeof(Row));
  if (rows.size() > capacity || !file.CopyTo(name, std::span(rows)).ok()) return std::nullopt;
  std::vector<Point> points(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!FromRow(rows[i], points[i])) return std::nullopt;
    if (i > 0 && points[i].step < points[i - 1].step) return std::nullopt;
  }
  return BoundedSeries<Point>::Of(capacity, std::move(points),
                                  description["stride"].template get<int64_t>(),
                                  description["in_last"].template get<int64_t>());
}

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what, " is not as it was written"));
}

}  // namespace

void ProgressPoint::Merge(const ProgressPoint& later) {
  unix_s = later.unix_s;
  step = later.step;
  for (const auto mean : kMeans) (this->*mean).Add(later.*mean);
}

absl::Status WriteRunCurves(FileSystem& file_system, const std::string& path,
                            const std::string& run_id, const RunCurves& curves) {
  json workers = json::array();
  std::vector<std::vector<ProgressRow>> rows;
  rows.reserve(curves.workers.size());
  std::vector<NamedBytes> arrays;
  for (const auto& [id, series] : curves.workers) {
    json worker = Describe(series);
    worker["id"] = id;
    workers.push_back(std::move(worker));
    rows.push_back(RowsOf(series));
    arrays.push_back(NameBytes(absl::StrCat(rows.size() - 1), std::span(rows.back())));
  }
  std::vector<EvaluationRow> held_out = RowsOf(curves.held_out);
  arrays.push_back(NameBytes(kHeldOut, std::span(held_out)));
  const json metadata = {
      {"run_id", run_id}, {"workers", std::move(workers)}, {kHeldOut, Describe(curves.held_out)}};
  return WriteArrayFile(file_system, path, kCurvesKind, kVersion, metadata, arrays);
}

absl::StatusOr<RunCurves> ReadRunCurves(FileSystem& file_system, const std::string& path,
                                        const std::string& run_id, size_t capacity) {
  ASSIGN_OR_RETURN(const ArrayFile file, ArrayFile::Read(file_system, path, kCurvesKind, kVersion));
  const json& metadata = file.metadata();
  if (!metadata.is_object()) return Damaged(path, "its header");
  const json run = metadata.value("run_id", json());
  if (!run.is_string()) return Damaged(path, "run_id");
  if (run.get<std::string>() != run_id) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is of run ", run.get<std::string>(), ", not of ", run_id));
  }
  const json workers = metadata.value("workers", json());
  if (!workers.is_array() || workers.size() > kMaxWorkers) return Damaged(path, "workers");
  std::map<std::string, BoundedSeries<ProgressPoint>> curves;
  for (size_t i = 0; i < workers.size(); ++i) {
    std::optional<BoundedSeries<ProgressPoint>> series =
        SeriesOf<ProgressPoint>(file, absl::StrCat(i), workers[i], capacity);
    if (!series.has_value() || !workers[i].value("id", json()).is_string() ||
        !curves.try_emplace(workers[i]["id"].get<std::string>(), *std::move(series)).second) {
      return Damaged(path, absl::StrCat("curve ", i));
    }
  }
  std::optional<BoundedSeries<EvaluationPoint>> held_out =
      SeriesOf<EvaluationPoint>(file, kHeldOut, metadata.value(kHeldOut, json()), capacity);
  if (!held_out.has_value()) return Damaged(path, kHeldOut);
  return RunCurves{std::move(curves), *std::move(held_out)};
}

}  // namespace causeway::server
