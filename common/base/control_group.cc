#include "common/base/control_group.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace causeway {
namespace {

std::vector<std::string> Lines(FileSystem& file_system, const std::string& path) {
  const absl::StatusOr<std::string> text = file_system.ReadFile(path);
  return text.ok() ? std::vector<std::string>(absl::StrSplit(*text, '\n', absl::SkipEmpty()))
                   : std::vector<std::string>();
}

std::vector<absl::string_view> Words(absl::string_view line) {
  return absl::StrSplit(line, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
}

bool HasOption(absl::string_view list, absl::string_view option) {
  const std::vector<absl::string_view> options = absl::StrSplit(list, ',');
  return std::ranges::find(options, option) != options.end();
}

// One controller's tree of groups as this process sees it: version 2 if `controller` is empty.
class Tree {
 public:
  Tree(FileSystem& file_system, const std::string& root, absl::string_view controller)
      : file_system_(file_system) {
    const bool v2 = controller.empty();
    std::string mount = absl::StrCat("/sys/fs/cgroup", v2 ? "" : "/", controller);
    std::string mounted_group = "/";
    for (const std::string& line : Lines(file_system, absl::StrCat(root, "/proc/self/mountinfo"))) {
      // "36 35 98:0 GROUP FOLDER options [more] - TYPE source OPTIONS"
      const std::vector<absl::string_view> words = Words(line);
      const auto dash = std::ranges::find(words, "-");
      if (words.size() < 5 || words.end() - dash < 4) continue;
      if (v2 ? dash[1] != "cgroup2" : dash[1] != "cgroup" || !HasOption(dash[3], controller)) {
        continue;
      }
      mounted_group = std::string(words[3]);
      mount = std::string(words[4]);
      break;
    }
    mount_ = absl::StrCat(root, mount);
    for (const std::string& line : Lines(file_system, absl::StrCat(root, "/proc/self/cgroup"))) {
      // "NUMBER:CONTROLLERS:GROUP", "0::GROUP" of version 2.
      const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
      if (parts.size() != 3 || (v2 ? !parts[1].empty() : !HasOption(parts[1], controller))) {
        continue;
      }
      group_ = GroupBelow(parts[2], mounted_group);
      break;
    }
  }

  // Calls visit(folder) for the process's own group and each above it.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (std::string group = group_;; group = ParentFolder(group)) {
      visit(group == "/" ? mount_ : absl::StrCat(mount_, group));
      if (group == "/") return;
    }
  }

  // A number of such a file; none: "max", and where there is no such file.
  std::optional<double> Number(const std::string& path, size_t word = 0) const {
    const std::vector<std::string> lines = Lines(file_system_, path);
    if (lines.empty()) return std::nullopt;
    const std::vector<absl::string_view> words = Words(lines.front());
    double value = 0;
    if (word >= words.size() || !absl::SimpleAtod(words[word], &value)) return std::nullopt;
    return value;
  }
  // The number after a name; 0: there is none.
  double Named(const std::string& path, absl::string_view name) const {
    double value = 0;
    for (const std::string& line : Lines(file_system_, path)) {
      const std::vector<absl::string_view> words = Words(line);
      if (words.size() == 2 && words[0] == name && absl::SimpleAtod(words[1], &value)) break;
    }
    return value;
  }

 private:
  // A container may see its own group alone, mounted in the place of the root.
  static std::string GroupBelow(absl::string_view group, absl::string_view mounted) {
    if (mounted != "/" && !absl::ConsumePrefix(&group, mounted)) return "/";
    if (!absl::StartsWith(group, "/") || absl::StrContains(group, "..")) return "/";
    return std::string(group);
  }

  FileSystem& file_system_;
  std::string mount_;
  std::string group_ = "/";
};

void LimitMemory(const Tree& tree, const std::vector<const char*>& limits, const char* used_file,
                 const char* cache, std::optional<int64_t>& left) {
  tree.ForEach([&](const std::string& group) {
    for (const char* const file : limits) {
      const std::optional<double> limit = tree.Number(JoinPath(group, file));
      const std::optional<double> used = tree.Number(JoinPath(group, used_file));
      if (!limit.has_value() || !used.has_value()) continue;
      const double droppable = tree.Named(JoinPath(group, "memory.stat"), cache);
      // No limit is a number above all memory in version 1.
      const double here = std::clamp(*limit - std::max(0.0, *used - droppable), 0.0, 0x1p60);
      left = std::min(left.value_or(int64_t{1} << 60), static_cast<int64_t>(here));
    }
  });
}

void LimitCores(std::optional<double> quota, std::optional<double> period, double& cores) {
  if (!quota.has_value() || !period.has_value() || *quota <= 0 || *period <= 0) return;
  const double here = *quota / *period;
  cores = cores > 0 ? std::min(cores, here) : here;
}

}  // namespace

ControlGroupLimits ReadControlGroupLimits(FileSystem& file_system, const std::string& root) {
  ControlGroupLimits limits;
  const Tree v2(file_system, root, "");
  LimitMemory(v2, {"memory.max", "memory.high"}, "memory.current", "inactive_file",
              limits.memory_left);
  v2.ForEach([&](const std::string& group) {
    const std::string path = JoinPath(group, "cpu.max");
    LimitCores(v2.Number(path, 0), v2.Number(path, 1), limits.cores);
  });
  const Tree memory(file_system, root, "memory");
  LimitMemory(memory, {"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file",
              limits.memory_left);
  const Tree cpu(file_system, root, "cpu");
  cpu.ForEach([&](const std::string& group) {
    LimitCores(cpu.Number(JoinPath(group, "cpu.cfs_quota_us")),
               cpu.Number(JoinPath(group, "cpu.cfs_period_us")), limits.cores);
  });
  return limits;
}

int UsableCores(const ControlGroupLimits& limits) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (!(limits.cores > 0) || limits.cores > cores) return cores;
  return static_cast<int>(std::ceil(limits.cores));
}

}  // namespace causeway
