  // ---- the state and its address: a change sets the address, and the address sets the page

  const empty = () => ({ like: "", config: "", drawn_by: "hf", fields: new Map() });
  const OTHERS = ["batch", "zipf", "max_time", "tab", "tour", "pin", "name"];
  function readNetwork(params) {
    const network = empty();
    for (const [name, value] of params) {
      if (name === "like" || name === "drawn_by") network[name] = value;
      else if (name === "config") {
        JSON.parse(value);
        network.config = value;
      } else if (FIELDS.has(name)) network.fields.set(name, value);
      else if (!OTHERS.includes(name)) throw new Error(`no field is called ${name.slice(0, 60)}`);
    }
    return network;
  }
  function writeNetwork(network) {
    const params = new URLSearchParams();
    for (const name of ["like", "config"]) if (network[name]) params.set(name, network[name]);
    if (network.drawn_by !== "hf") params.set("drawn_by", network.drawn_by);
    for (const [name, value] of network.fields) params.set(name, value);
    return params;
  }
  function read(address) {
    if (address.length > LONGEST) throw new Error(`it has ${address.length} letters, and at most ${LONGEST} are read`);
    const given = new URLSearchParams(address || START), stop = given.get("tour");
    if (stop !== null && !DATA.tour[stop - 1]) throw new Error(`the tour has ${DATA.tour.length} stops, and none is ${stop.slice(0, 20)}`);
    const params = stop === null ? given : new URLSearchParams(DATA.tour[stop - 1].address);
    const pins = params.getAll("pin").slice(0, MOST_PINS).map((text) => {
      const inner = new URLSearchParams(text);
      return { network: readNetwork(inner), name: (inner.get("name") || "pinned").slice(0, 40) };
    });
    return { network: readNetwork(params), batch: params.get("batch") || "512", zipf: params.get("zipf") || "",
      max_time: params.get("max_time") || "", tab: given.get("tab") ?? params.get("tab") ?? "", tour: stop ?? "", pins };
  }
  function write(next) {
    const params = writeNetwork(next.network);
    if (next.batch !== "512") params.set("batch", next.batch);
    if (next.zipf) params.set("zipf", next.zipf);
    if (next.max_time) params.set("max_time", next.max_time);
    for (const pin of next.pins) {
      const inner = writeNetwork(pin.network);
      inner.set("name", pin.name);
      params.append("pin", inner.toString());
    }
    if (next.tab && next.tab !== TABS[0]) params.set("tab", next.tab);
    return params.toString() || "placement=post";
  }
  const now = () => location.hash.slice(1);
  // A change of the network leaves the tour.
  function change(edit) {
    const next = { network: { ...state.network, fields: new Map(state.network.fields) }, batch: state.batch,
      zipf: state.zipf, max_time: state.max_time, tab: state.tab, pins: [...state.pins] };
    edit(next);
    const address = write(next);
    if (address.length > LONGEST) return say(`This is too long for an address of ${LONGEST} letters.`);
    if (address !== now()) location.hash = ownAddress = address;
  }
  function withField(network, name, value) {
    const fields = new Map(network.fields);
    const plain = !network.like && !network.config && value === FIELDS.get(name).default;
    if (value === "" || plain) fields.delete(name);
    else fields.set(name, value);
    return { ...network, fields };
  }
  const setField = (name, value) => change((next) => { next.network = withField(next.network, name, value); });
  // What a reader calls the network.
  const nameOf = (network, content) => network.like || (network.config ? "Your model" : content?.name ?? "This network");

