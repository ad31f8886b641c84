// The program's log: lines for people, on standard error, through spdlog. A reader that stands
// still holds nobody up for more than a second: lines that it does not take are left out, and a
// line says how many.
//
//   Log().info("worker {} joined", id);
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "spdlog/logger.h"

namespace causeway {

// Thread-safe. Before InitializeLog it writes warnings and errors only.
spdlog::logger& Log();

// Call once in main(): `program` stands in every line; `level` is debug, info, warn or error,
// INVALID_ARGUMENT for another one.
absl::Status InitializeLog(const std::string& program, const std::string& level);

// The same for a library: lines go to `sink`, from level info on. Not while others log.
void SendLogTo(std::shared_ptr<spdlog::sinks::sink> sink);

}  // namespace causeway
