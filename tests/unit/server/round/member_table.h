// Members by their ids, for tests of what looks at all of them.
#pragma once

#include <initializer_list>
#include <map>
#include <string>

#include "server/round/membership.h"

namespace causeway::server {

using Members = std::map<std::string, Member>;

inline Members Table(std::initializer_list<Member> list) {
  Members members;
  for (const Member& member : list) members[member.record.worker_id()] = member;
  return members;
}

}  // namespace causeway::server
