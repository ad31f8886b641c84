#include "worker/backend/cuda/opened_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace causeway::worker::cuda {

std::vector<std::string> UsualPlaces(const std::string& name) {
  return {name, absl::StrCat("/usr/local/cuda/lib64/", name)};
}

absl::StatusOr<OpenedLibrary> OpenedLibrary::Open(const LibraryRequest& request) {
  std::vector<std::string> failures;
  for (const std::string& name : request.names) {
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return OpenedLibrary(handle, name, request.other_version);
    const char* const error = dlerror();
    failures.push_back(error == nullptr ? name : error);
  }
  return absl::FailedPreconditionError(
      absl::StrCat(request.what, " (", absl::StrJoin(failures, "; "), "): ", request.remedy));
}

absl::Status OpenedLibrary::Find(std::initializer_list<Symbol> symbols) const {
  for (const Symbol& symbol : symbols) {
    *symbol.address = dlsym(handle_, symbol.name);
    if (*symbol.address != nullptr) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(name_, " has no ", symbol.name, ": ", other_version_));
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker::cuda
