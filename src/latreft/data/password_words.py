"""The fixed list of common English words that PasswordMatch passwords are made of.

Sorted, distinct, three to eight lower-case letters each. A change here changes every generated text, hence every number
measured on PasswordMatch.
"""

from __future__ import annotations

WORDS: tuple[str, ...] = tuple(
    """
able about above accept account achieve across act action active actor add address adult advance advice affair
affect afford afraid after again against age agency agent agree ahead aid aim air airport album alive all allow
almost alone along already also alter always amaze amount amuse ancient anger angle angry animal ankle annual
another answer ant anxious any apart apple apply april apron arch area argue arm army around arrange arrest arrive
arrow art article artist aside ask asleep aspect assist assume assure attach attack attempt attend attic attract
august aunt author autumn avenue average avoid awake award aware away awful axe baby back bacon bad badge bag bake
baker balance balcony ball balloon banana band bandage bank banner bar barber bare bargain bark barn barrel base
basic basin basket bat bath battery battle bay beach bead beak beam bean bear beard beast beat beauty beaver because
become bed bedroom bee beef beer beetle before began begin behave behind being belief believe bell belong below belt
bench bend benefit berry beside best better between beyond bicycle big bike bill bin bird birth biscuit bite bitter
black blade blame blank blanket blaze blend bless blind block blood bloom blossom blow blue board boast boat body
boil bold bolt bone bonus book boot border bore borrow boss both bother bottle bottom bounce bow bowl box boy brain
brake branch brand brass brave bread break breath breeze brick bride bridge brief bright bring brisk broad broken
bronze broom brother brown brush bubble bucket buckle bud budget buffalo build bulb bull bullet bump bunch bundle
burn burst bus bush business busy butcher butter button buy buzz cabbage cabin cabinet cable cactus cage cake
calendar calf call calm camel camera camp can canal cancel candle candy cane cannon canoe canvas cap capable capital
captain car caramel caravan carbon card care career careful cargo carol carpet carrot carry cart carve case cash
castle casual cat catch cattle cause cave ceiling celery cell cellar cement center central century cereal certain
chain chair chalk chamber chance change channel chapel chapter charge charm chart chase cheap check cheek cheer
cheese chef cherry chess chest chew chicken chief child chimney chin choice choir choose chop chorus church cider
cigar cinema circle circus citizen city civil claim clap class classic claw clay clean clear clerk clever cliff
climate climb clinic cloak clock close cloth cloud clover clown club clue cluster coach coal coast coat cobweb cocoa
coconut code coffee coin cold collar collect college color column comb come comedy comet comfort comic command
comment common company compare compass complete computer concert conduct cone confirm connect consider contact
contain content contest continue control cook cookie cool copper copy coral cord cork corn corner correct cost
costume cottage cotton couch cough could council count counter country county couple courage course court cousin
cover cow coyote crab crack cradle craft crane crash crate crawl crayon crazy cream create creek crew cricket crime
crisp critic crop cross crow crowd crown cruel cruise crumb crush crust cry crystal cub cube cuckoo cucumber culture
cup cupboard cure curious curl current curtain curve cushion custom cut cycle daily dairy daisy damage damp dance
danger dare dark dash data date daughter dawn day dead deal dear debate debt decade decay december decide deck
declare decline deep deer defeat defend degree delay deliver demand dentist deny depart depend depth deputy desert
deserve design desk despite dessert destroy detail detect develop device devil devote dew diagram dial diamond diary
dictate did diet differ dig digital dinner dip direct dirt discount discover discuss dish dismiss display distance
ditch dive divide dock doctor dog doll dollar dolphin dome donkey door dose dot double doubt dough dove down dozen
draft dragon drain drama draw drawer dream dress drift drill drink drive drop drum dry duck due duke dull dump
during dusk dust duty dwell each eager eagle ear early earn earth ease east easy eat echo edge edit educate effect
effort egg eight either elbow elder elect elegant element elephant eleven else embark ember emerald emerge emotion
employ empty enable end enemy energy engage engine enjoy enough ensure enter entire entry envelope equal equip erase
errand error escape essay estate even evening event ever every evidence evil exact exam example excel except excite
excuse exercise exhaust exhibit exist exit expand expect expert explain explore export express extend extra eye
fable fabric face fact factor factory fade fail faint fair faith falcon fall false fame family famous fan fancy far
farm farmer fashion fast fate father fault favor fear feast feather feature february federal fee feed feel fellow
female fence fern ferry fetch fever few fiber fiction fiddle field fierce fifteen fifty fig fight figure file fill
film filter final find fine finger finish fire firm first fish fist fit five fix flag flame flannel flash flat
flavor flee fleet flesh flight float flock flood floor flour flow flower flu fluid flute fly foam focus fog fold
folk follow food fool foot football for force forehead foreign forest forever forget fork form formal fortune forty
forward fossil found fountain four fox frame freckle free freedom freeze freight fresh friday fridge friend frog
front frost frown frozen fruit fuel full fun function fund funny fur furnace future gain galaxy gallery gallop game
gap garage garden garlic garment gas gate gather gauge gave gaze gear gem general gentle genuine ghost giant gift
giggle ginger giraffe girl give glad glance glass glide globe gloom glory glove glow glue goal goat goblin gold
golden golf gone good goose gorilla gossip govern grab grace grade gradual grain grand grandma granite grant grape
graph grass grateful grave gravel gravity gravy gray great green greet grey grief grill grin grind grip ground group
grove grow growth guard guess guest guide guilty guitar gull gum guy gym habit had hail hair half hall ham hammer
hamster hand handle handsome happen happy harbor hard hardly harm harmony harness harp harvest haste hat hatch haunt
have hawk hay hazel head heal health heap hear heart heat heaven heavy hedge heel height hello helmet help hen herb
herd here hero heron hide high hill hint hip hire history hit hobby hockey hold hole holiday hollow holly home
honest honey honor hood hook hop hope horizon horn horse hose hospital host hotel hour house hover how huge human
humble humor hundred hungry hunt hurdle hurry hurt husband hut hymn ice icon idea ideal idle ignore ill image
imagine impact import impose improve inch include income increase indeed index indoor infant inform initial ink inn
inner innocent input inquire insect inside insist install instead insult intend interest invent invest invite iron
island issue item ivory ivy jacket jade jaguar jail jam january jar jaw jazz jealous jeans jelly jewel job jockey
join joke jolly journal journey joy judge juice july jump june jungle junior jury just justice kangaroo keen keep
kennel kettle key keyboard kick kid kidney kind king kingdom kiss kit kitchen kite kitten knee kneel knife knight
knit knob knock knot know known koala label labor lace lack ladder lady lagoon lake lamb lamp land lane language
lantern lap large lark laser last late laugh launch laundry lava law lawn lawyer lay layer lazy lead leader leaf
league lean leap learn lease leash least leather leave lecture left leg legal legend leisure lemon lend length lens
leopard less lesson let letter lettuce level lever liberty library lid lie life lift light like lily limb lime limit
line linen link lion lip liquid list listen literal little live liver lizard load loaf loan lobby lobster local lock
lodge log logic lonely long look loop loose lord lose loss lost lot lotus loud lounge love lovely low loyal luck
luggage lumber lunar lunch lung luxury machine mad magic magnet maid mail main major make male mall mammal man
manage mango manner mansion many map maple marble march margin marine mark market marry mask mass master match
material math matter may mayor maze meadow meal mean measure meat mechanic medal media medical medium meet melody
melon melt member memory mend mental mention menu mercy merge merit merry message metal method middle might mild
mile milk mill million mind mine mineral minor mint minute miracle mirror miss mission mist mistake mitten mix
mixture mobile model modern modest moment monday money monkey monster month mood moon moral more morning mosaic moss
most motel moth mother motion motor mountain mouse mouth move movie much mud muffin mug mule multiply muscle museum
mushroom music must mustard mutual mystery myth nail name napkin narrow nation native nature navy near neat neck
need needle neglect nephew nerve nest net network neutral never new news next nice nickel niece night nine noble
nobody nod noise none noodle noon normal north nose not note nothing notice novel november now nowhere number nurse
nut nylon oak oar oasis oat obey object oblige observe obtain obvious ocean october octopus odd off offer office
often oil old olive omit once one onion only open opera opinion option orange orbit orchard orchid order ordinary
organ origin ostrich other otter ought ounce our out outcome outdoor outer outfit outline output outside oval oven
over owl own owner oxygen oyster pace pack package pad paddle page pain paint pair palace pale palm pan pancake
panda panel panic panther pants paper parade parcel pardon parent park parrot parsley part partner party pass
passage passion past pasta paste pastry path patient patio pattern pause pave paw pay pea peace peach peacock peak
peanut pear pearl pebble pedal peel pen penalty pencil penguin penny people pepper perfect perform perfume perhaps
period permit person pet petal phone photo phrase piano pick pickle picnic picture pie piece pier pig pigeon pile
pill pillow pilot pin pine pink pint pioneer pipe pirate pistol pit pitch pizza place plain plan plane planet plank
plant plastic plate play player plead please pleasure plenty plot plow pluck plug plum plunge plural plus pocket
poem poet point poison polar pole police policy polish polite pond pony pool poor pop popcorn poppy popular porch
port portion portrait position possible post poster pot potato pottery pouch pound pour powder power practice praise
pray prefer prepare present press pretend pretty prevent previous price pride priest primary prince print prior
prison private prize problem process produce profit program progress project promise proof proper protect proud
prove provide prune public pudding pull pulse pump pumpkin punch pupil puppet puppy purchase pure purple purpose
purse pursue push put puzzle pyramid quail quality quantity quarrel quarry quart quarter queen quest question quick
quiet quill quilt quit quite quiz quote rabbit raccoon race rack radar radio radish raft rag rage rail rain rainbow
raise raisin rake rally ramp ranch random range rank rapid rare rat rate rather raven raw ray razor reach react read
ready real reason rebel recall receive recent recipe record recover red reduce reef refer reflect refuse regard
region regret regular reject relate relax release relief rely remain remark remedy remember remind remote remove
rent repair repeat reply report request rescue research resemble reserve resist resort resource respect rest result
resume retail retire retreat return reveal revenge review reward rhyme rhythm rib ribbon rice rich ride rider ridge
rifle right rigid ring rinse ripe ripple rise risk ritual rival river road roar roast robe robin robot rock rocket
rod role roll roof room root rope rose rotate rotten rough round route routine row royal rub rubber ruby rude rug
ruin rule ruler rumor run runner rural rush rust rustic sack sacred sad saddle safe safety sail sailor saint salad
salary sale salmon salt salute same sample sand sandal sandwich satin satisfy saturday sauce saucer sausage save saw
say scale scan scarce scare scarf scatter scene scent schedule scheme school science scissors scoop score scout
scrap scratch scream screen screw scrub sea seal search season seat second secret section secure see seed seek seem
select sell senate send senior sense sentence separate sequence series serious servant serve service session set
settle seven several sew shade shadow shake shallow shame shape share shark sharp shave she shed sheep sheet shelf
shell shelter shepherd sheriff shield shift shine ship shirt shiver shock shoe shoot shop shore short shoulder shout
shovel show shower shrimp shrink shrub shut shy sick side siege sigh sight sign signal silent silk silly silver
similar simple since sing singer single sink sister sit site six size skate sketch ski skill skin skip skirt skull
sky slate sled sleep sleeve slice slide slight slim slip slogan slope slow small smart smell smile smoke smooth
snack snail snake snap sneeze snow soap soccer social sock soda sofa soft soil solar soldier sole solid solve some
son song soon sort soul sound soup source south space spade spare spark sparrow speak special speech speed spell
spend sphere spice spider spin spinach spine spiral spirit splash split spoil sponge spoon sport spot spray spread
spring sprout spruce spy square squash squeeze squirrel stable stadium staff stage stair stake stamp stand staple
star stare start state station statue stay steady steak steam steel steep stem step stew stick stiff still sting
stir stitch stock stomach stone stool stop storage store storm story stove straight strange straw stream street
stretch strict strike string strip stripe stroke strong student studio study stuff stumble style subject submit
subway succeed such sudden suffer sugar suggest suit sum summer summit sun sunday sunset super supper supply support
suppose sure surface surprise survey swallow swamp swan swap swarm swear sweat sweater sweep sweet swift swim swing
switch sword symbol syrup system table tackle tail tailor take talent talk tall tame tank tap tape target task taste
tax taxi tea teach teacher team tear tease tell temper temple ten tenant tend tennis tent term test text thank
theater theme then theory there thick thief thigh thimble thin thing think third thirty thistle thorn thought
thousand thread threat three throat throne through throw thumb thunder thursday ticket tickle tide tidy tie tiger
tight tile timber time tin tiny tip tire title toast tobacco today toe together toilet token tomato tomorrow tone
tongue tonight tool tooth top topic torch tornado tortoise total touch tough tour toward towel tower town toy trace
track trade traffic trail train trait transfer trap travel tray treasure treat tree tremble trend trial tribe trick
trigger trim trip trophy tropical trouble trout truck true trumpet trunk trust truth try tube tuesday tulip tumble
tuna tune tunnel turkey turn turtle tutor twelve twenty twice twig twin twist two type typical ugly ulcer umbrella
uncle under undo uniform union unique unit unity universe unknown unless until unusual update upon upper upset
upstairs urban urge use useful usual utility vacant vacuum vague valid valley value valve van vanilla vanish vapor
variety various vase vast vault veil vein velvet vendor venture verb verse version very vessel vest veteran victory
video view village vine vinegar violet violin virtue visa visit visitor vital vivid vocal voice volcano volume vote
voyage wage wagon waist wait waiter wake walk wall wallet walnut walrus wander want war warm warn wash wasp waste
watch water wave wax way weak wealth weapon wear weasel weather weave web wedding weed week weigh weight welcome
well west wet whale wheat wheel when where whisker whisper whistle white whole why wide widow width wife wild will
willow win wind window wine wing winner winter wipe wire wisdom wise wish witness wizard wolf woman wonder wood
wooden wool word work worker world worm worry worth wound wrap wreath wreck wrinkle wrist write writer wrong yard
yarn year yeast yellow yes yet yield yogurt young youth zebra zero zinc zipper zone zoo
""".split()  # noqa: SIM905
)
