#include "common/telemetry/metric_page.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

TEST(CertificateFiguresTest, EachCertificateThatIsGivenHasItsOwn) {
  MetricPage page;
  AddCertificateFigures(
      page, {{"tls_cert", "cert.pem"}, {"standby_cert", "operator.pem"}, {"etcd_cert", ""}},
      [](const std::string& file) -> absl::StatusOr<absl::Time> {
        if (file == "cert.pem") return absl::FromUnixSeconds(5000);
        return absl::NotFoundError("there is no " + file);
      });
  const std::string text = page.Text();
  const auto has = [&](const std::string& line) { return absl::StrContains(text, line + "\n"); };
  EXPECT_TRUE(has("causeway_certificate_readable{flag=\"tls_cert\"} 1")) << text;
  EXPECT_TRUE(has("causeway_certificate_readable{flag=\"standby_cert\"} 0")) << text;
  EXPECT_TRUE(has("causeway_certificate_end_timestamp_seconds{flag=\"tls_cert\"} 5000")) << text;
  EXPECT_FALSE(absl::StrContains(text, "seconds{flag=\"standby_cert\"}")) << text;
  EXPECT_FALSE(absl::StrContains(text, "etcd_cert")) << text;
}

}  // namespace
}  // namespace causeway
