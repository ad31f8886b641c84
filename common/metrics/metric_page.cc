#include "common/metrics/metric_page.h"

#include <algorithm>
#include <utility>

#include "prometheus/text_serializer.h"

namespace causeway {
namespace {

constexpr size_t kMaxLabelBytes = 64;

}  // namespace

prometheus::ClientMetric& MetricPage::Add(const std::string& name, const std::string& help,
                                          prometheus::MetricType type, const MetricLabels& labels) {
  const auto [place, is_new] = places_.emplace(name, families_.size());
  if (is_new) {
    prometheus::MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    families_.push_back(std::move(family));
  }
  prometheus::ClientMetric& metric = families_[place->second].metric.emplace_back();
  for (const auto& [label, value] : labels) metric.label.push_back({label, value});
  return metric;
}

void MetricPage::Gauge(const std::string& name, const std::string& help, double value,
                       const MetricLabels& labels) {
  Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void MetricPage::Counter(const std::string& name, const std::string& help, double value,
                         const MetricLabels& labels) {
  Add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void MetricPage::Histogram(const std::string& name, const std::string& help,
                           const prometheus::ClientMetric::Histogram& value,
                           const MetricLabels& labels) {
  Add(name, help, prometheus::MetricType::Histogram, labels).histogram = value;
}

std::string MetricPage::Text() const { return prometheus::TextSerializer().Serialize(families_); }

std::string LabelText(absl::string_view text) {
  size_t bytes = std::min(text.size(), kMaxLabelBytes);
  if (bytes < text.size()) {
    // Not in the middle of a character.
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  }
  return std::string(text.substr(0, bytes));
}

}  // namespace causeway
